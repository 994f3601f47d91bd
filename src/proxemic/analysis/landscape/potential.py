"""The loss of one embedding as a function of its place, as in section III of the warping paper."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from proxemic.losses import EuclideanSoftmaxLoss, WarpedSoftmaxLoss
from proxemic.losses.checks import check_count, check_positive
from proxemic.losses.warped_softmax import check_warp, warp

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WarpPotential:
    """``k1·t`` for ``t < α`` and ``k2·t + (k1 − k2)·α`` from there on: the warp's f1 by the gradient that trains.

    The term Δ of `warp` has a value and no gradient, so that the value of the loss does not tell where training goes.
    This function is continuous and has the slope of `warp` everywhere, for any ``delta_scale``. Both drive an embedding
    in the same direction, for any number of classes: the gradient is ``T·σ(z)·(f1'·u − Σ_j q_j·f2'·u_j)``, where u are
    the unit vectors away from the proxies, ``q = softmax_j(−T·f2(t_j))``, and only z, the `Landscape.logits`, depends
    on Δ.

    Args:
        alpha: Α ≥ 0, a distance.
        k1: Slope below α, in (0, 1].
        k2: Slope from α on, ≥ 1.

    Raises:
        ValueError: If an argument is out of range.

    Source: Warping paper, equation 7 without Δ, lowered by ``(1 − k1)·α`` from α on.

    >>> WarpPotential(alpha=2.0, k1=0.5, k2=2.0)(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    tensor([0.0000, 0.5000, 1.0000, 3.0000])
    """

    alpha: float
    k1: float
    k2: float

    def __post_init__(self) -> None:
        check_warp(self.alpha, self.k1, self.k2)

    @property
    def at_proxy(self) -> float:
        """Slope at the distance 0."""
        return self.k1 if self.alpha else self.k2

    def __call__(self, distance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        beyond = self.k2 * distance + (self.k1 - self.k2) * self.alpha
        return torch.where(distance < self.alpha, self.k1 * distance, beyond)


@dataclass(frozen=True)
class Landscape:
    """``log(1 + Σ_j exp(T·f1(‖e − p_c‖) − T·f2(‖e − p_j‖)))`` at any places e, computed in float64.

    Args:
        target: p_c, the proxy of the embedding's class.
        others: p_j, those of the other classes, at least one.
        f1: Elementwise on the distance to the own proxy; give a warp as `WarpPotential`.
        f2: Elementwise on the distances to the others.
        temperature: T > 0.
        heights: Distance of each of the others from the plane of the landscape, where ``others`` then holds its nearest
            point, so that ``‖e − p_j‖² = ‖e − others_j‖² + heights_j²`` is exact; ``None``: all lie in it.

    Raises:
        ValueError: If there is no other proxy, one lies on the own, or the temperature is not positive.

    Source: Warping paper, equations 5, 6 and 8.

    >>> landscape = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]))
    >>> landscape(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))  # half way: log 2; on the own proxy: log(1 + e^−4)
    tensor([0.6931, 0.0181], dtype=torch.float64)
    """

    target: Float[Tensor, " dim"]
    others: Float[Tensor, "others dim"]
    f1: Function = torch.positive
    f2: Function = torch.positive
    temperature: float = 1.0
    heights: Float[Tensor, " others"] | None = None

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        if len(self.others) == 0:
            raise ValueError("others hold no proxy, but a class needs another one to be told apart from.")
        if not self.spacing > 0:
            raise ValueError("A proxy of others lies on the own, which leaves nothing between them: give it a place.")

    def logits(self, points: Float[Tensor, "points dim"]) -> Float[Tensor, " points"]:
        """``z = T·f1 + LSE_j(−T·f2)``, of which the loss is ``log(1 + e^z)``; least and largest at the same places."""
        target, others = self.target.double(), self.others.double()
        values = []
        for part in points.double().split(max(1, 2**22 // len(others))):  # a class may have thousands of others
            near = torch.linalg.vector_norm(part - target, dim=1)
            far = torch.cdist(part, others, compute_mode="donot_use_mm_for_euclid_dist")
            if self.heights is not None:
                far = torch.hypot(far, self._heights)
            values.append(self.temperature * self.f1(near) + (-self.temperature * self.f2(far)).logsumexp(1))
        return torch.cat(values)

    def __call__(self, points: Float[Tensor, "points dim"]) -> Float[Tensor, " points"]:
        return F.softplus(self.logits(points))

    @property
    def spacing(self) -> float:
        """Distance from the own proxy to the nearest other."""
        apart = (self.others.double() - self.target.double()).square().sum(1)
        return (apart + self._heights.square()).min().sqrt().item()

    @property
    def in_plane(self) -> Float[Tensor, "shown dim"]:
        """Those of the others that lie in the plane."""
        return self.others[self._heights <= 1e-6 * self.spacing]

    @property
    def _heights(self) -> Float64[Tensor, " others"]:
        return self.others.new_zeros(len(self.others)).double() if self.heights is None else self.heights.double()


@torch.no_grad()
def landscape_of(loss: EuclideanSoftmaxLoss | WarpedSoftmaxLoss, label: int = 0) -> Landscape:
    """The landscape of one class of a loss, in two dimensions.

    Embeddings of two dimensions keep their coordinates. With more, the landscape is that on the plane through the
    class's own proxy, which becomes (0, 0), and its two nearest others, the nearer at (distance, 0). It is exact there:
    its points are places of embeddings, and all proxies count by their true distances. A warp is replaced by its
    `WarpPotential`.

    Args:
        loss: A loss with one proxy per class.
        label: The class, in [0, num_classes).

    Raises:
        ValueError: If an argument is not allowed, or the embeddings have one dimension.

    >>> loss = EuclideanSoftmaxLoss(5, 16)
    >>> landscape = landscape_of(loss, 3)
    >>> torch.allclose(landscape(torch.zeros(1, 2)).float(), loss(loss.proxies[3], torch.tensor([3])))
    True
    """
    if not isinstance(loss, (EuclideanSoftmaxLoss, WarpedSoftmaxLoss)):
        raise ValueError(
            f"loss is a {type(loss).__name__}, but landscapes are of EuclideanSoftmaxLoss and WarpedSoftmaxLoss."
        )
    proxies = _proxies(loss)
    if loss.embedding_size == 1:
        raise ValueError("loss has embedding_size 1, but a landscape is flat: make one of size 2 or more.")
    check_count("label", label, 0, "it is the number of a class")
    if label >= loss.num_classes:
        raise ValueError(f"label is {label}, but num_classes={loss.num_classes} allows 0 to {loss.num_classes - 1}.")
    target, others = proxies[label], torch.cat((proxies[:label], proxies[label + 1 :]))
    f1, transform = torch.positive if loss.f1 is None else loss.f1, loss.scoring.transform
    if isinstance(f1, partial) and f1.func is warp:
        f1 = WarpPotential(*(f1.keywords[name] for name in ("alpha", "k1", "k2")))
    f2 = torch.positive if transform is None else lambda distance: -transform(-distance)
    if loss.embedding_size == 2:
        return Landscape(target, others, f1, f2, loss.scoring.scale)
    away = others - target
    away = away[away.norm(dim=1).argsort(stable=True)]
    x = F.normalize(away[0], dim=0)
    # The second axis leads to the second proxy, or anywhere if there is none or it lies on the line of the first.
    towards = torch.cat((away[1:2], torch.eye(len(x), dtype=x.dtype)))
    rest = towards - torch.outer(towards @ x, x)
    y = rest[(rest.norm(dim=1) > 1e-6 * towards.norm(dim=1)).int().argmax()]
    axes = torch.stack((x, F.normalize(y - (y @ x) * x, dim=0)))
    flat = away @ axes.T
    heights = torch.linalg.vector_norm(away - flat @ axes, dim=1)
    return Landscape(torch.zeros(2, dtype=torch.float64), flat, f1, f2, loss.scoring.scale, heights)


def pushes_off_proxies(loss: EuclideanSoftmaxLoss | WarpedSoftmaxLoss) -> Float64[Tensor, " classes"]:
    """How strongly the other classes together push an embedding off its own proxy, in units of T, for each class.

    ``‖Σ_j q_j·f2'(t_j)·u_j‖`` at p_c, where u_j are the unit vectors away from the other proxies and ``q`` is the
    softmax of ``−T·f2(t_j)``. With ``f2 = t`` it is 1 where all push in one direction, and less the more they cancel.
    Where it is below f1's slope at 0, k1 of the warp, the proxy is a local minimum in all dimensions, whatever α is.

    Raises:
        ValueError: If there are several proxies per class.

    >>> proxies = torch.tensor([[0.0, 0.0], [4.0, 0.0], [-4.0, 0.0]])
    >>> loss = EuclideanSoftmaxLoss(3, 2, init=lambda w: w.copy_(proxies.unsqueeze(1)))
    >>> pushes_off_proxies(loss).round(decimals=6)
    tensor([0., 1., 1.], dtype=torch.float64)
    """
    proxies, transform, scale = _proxies(loss), loss.scoring.transform, loss.scoring.scale
    everyone, pushes = torch.arange(len(proxies)), []
    for part in everyone.split(max(1, 2**22 // len(proxies))):
        place = proxies[part].requires_grad_()
        is_target = part.unsqueeze(1) == everyone
        score = -torch.where(is_target, 1.0, torch.cdist(place, proxies, compute_mode="donot_use_mm_for_euclid_dist"))
        score = score if transform is None else transform(score)
        pressure = (scale * score).masked_fill(is_target, -torch.inf).logsumexp(1).sum()
        pushes.append(torch.autograd.grad(pressure, place)[0].norm(dim=1) / scale)
    return torch.cat(pushes)


def _proxies(loss: EuclideanSoftmaxLoss | WarpedSoftmaxLoss) -> Float64[Tensor, "classes dim"]:
    if loss.proxies_per_class > 1:
        raise ValueError(
            f"loss has {loss.proxies_per_class} proxies per class, but landscapes are of one: make it with "
            "proxies_per_class=1."
        )
    return loss.proxies.detach().squeeze(1).double().cpu()
