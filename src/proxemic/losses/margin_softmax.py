"""Softmax of cosines with a margin on the target class: SphereFace, CosFace, ArcFace, MagFace."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from proxemic.losses.checks import (
    check_count,
    check_embeddings,
    check_labels,
    check_number,
    check_positive,
    is_number,
    shown,
)
from proxemic.losses.initialization import small_normal, unit_directions, xavier_uniform
from proxemic.losses.margins import Margin, angular_margin, multiplied_angle, target_margin, wider_angle
from proxemic.losses.options import ProxyOptions
from proxemic.losses.scores import InnerProduct, Scoring, SoftmaxPooling
from proxemic.losses.scores.similarity import unit
from proxemic.losses.softmax import SoftmaxLoss

# `outliers` compares embeddings with a copy of their class's proxies each, of at most this many numbers (64 MiB).
_HELD = 2**24


class MarginSoftmax(SoftmaxLoss):
    """Base class of the softmax losses with a margin: ``mean_i softplus(N_i(σ) − σ·with_margin(P_i))``.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling())

    def __init__(self, num_classes: int, embedding_size: int, *, scale: float, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, embedding_size, scoring=Scoring(check_positive("scale", scale)), **options)

    @abstractmethod
    def with_margin(
        self, cosine: Float[Tensor, " batch"], labels: Int[Tensor, " batch"], embeddings: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, " batch"]:
        """Return the scores of the target classes ``[B]`` with the margin."""

    def target_logits(self, positive: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.scoring.scale * self.with_margin(positive, labels, embeddings)

    @torch.no_grad()
    def outliers(
        self, embeddings: Float[Tensor, "rows dim"], labels: Int[Tensor, " rows"], *, degrees: float = 75.0
    ) -> Bool[Tensor, " rows"]:
        """Find the samples that the sub-centers of their class mark as mislabelled: sub-center ArcFace's cleaning.

        With several proxies per class and `MaxPooling`, most samples of a class gather at one sub-center, the dominant
        one, and noise gathers at the others. An outlier is more than 75° from the dominant sub-center of its class,
        whether or not another one is nearer. Deng et al., Sub-center ArcFace, ECCV 2020, as in the authors' ``drop.py``
        and pytorch-metric-learning's ``get_outliers``.

        Args:
            embeddings: ``[N, D]`` of all samples at once: most samples of a class are nearest to its dominant
                sub-center.
            labels: ``[N]``, their classes.
            degrees: The angle, in [0, 180].

        Returns:
            A mask ``[N]``, true for outliers.

        Raises:
            ValueError: If a shape, a dtype, a label or the angle is not allowed, or the proxies are sharded.

        >>> proxies = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
        >>> loss = ArcFaceLoss(2, 2, proxies_per_class=2, init=lambda w: w.copy_(proxies))
        >>> loss.outliers(torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.2, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 0, 1]))
        tensor([False, False,  True, False])
        """
        check_embeddings(embeddings, self.embedding_size, least=0)
        check_labels(labels, len(embeddings), self.num_classes)
        check_number("degrees", degrees, "an angle between directions is 0 to 180: take 75", least=0, most=180)
        self._need_all_classes()
        dtype, per_class = self._dtype(embeddings), self.proxies_per_class
        x, labels, proxies = embeddings.to(dtype), labels.long(), unit(self.proxies.to(dtype))
        size = max(_HELD // (per_class * self.embedding_size), 1)
        parts = zip(x.split(size), labels.split(size), strict=True)
        cosines = torch.cat([InnerProduct().pairs(unit(queries), proxies[label]) for queries, label in parts])
        votes = torch.bincount(labels * per_class + cosines.argmax(1), minlength=self.num_classes * per_class)
        dominant = votes.view(-1, per_class).argmax(1)
        return cosines.gather(1, dominant[labels].unsqueeze(1)).squeeze(1) < math.cos(math.radians(degrees))


class SphereFaceLoss(MarginSoftmax):
    """A-softmax: the angle to the target class is multiplied by m, ``mean_i softplus(N_i(σ) − σ ψ(θ_i))``.

    ``ψ(θ) = (−1)^j cos(mθ) − 2j`` on ``[jπ/m, (j+1)π/m]``. Liu et al., SphereFace, CVPR 2017, equations 6 and 7, on
    unit embeddings with a scale; the authors use the embedding's length instead of σ and blend ψ with cos θ at first.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m ≥ 1, a whole number; 1 is the normalised softmax.
        scale: σ > 0. ψ reaches down to 1 − 2m, so that it may be smaller than the other margins'.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = SphereFaceLoss(2, 2, margin=2, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 1.0]]), torch.tensor([0])).item()  # log(1 + e^(cos 45° − cos 90°))
    1.1079...
    """

    defaults = ProxyOptions(init=unit_directions)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: int = 4,
        scale: float = 20.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        check_count("margin", margin, 1, "it multiplies the angle; SphereFace takes 4")
        self.margin = margin

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return multiplied_angle(cosine, self.margin)


class CosFaceLoss(MarginSoftmax):
    """The cosine to the target class less a margin, ``mean_i softplus(N_i(σ) − σ(P_i − m))``.

    Wang et al., CosFace, CVPR 2018, equation 4.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m in [0, 2), in units of the cosine: one number, ``[C]`` of the classes, or a `MarginRule`.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = CosFaceLoss(2, 2, margin=0.5, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + e^(0 − 0.5))
    0.4740...
    """

    defaults = ProxyOptions(init=xavier_uniform)
    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: Margin = 0.35,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self._set_margin(margin, _check_cosine_margin)

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return cosine - target_margin(self.margin, labels)


class ArcFaceLoss(MarginSoftmax):
    """A margin on the angle to the target class, ``mean_i softplus(N_i(σ) − σ cos(θ_i + m))``.

    Deng et al., ArcFace, CVPR 2019, equation 3; beyond ``θ + m = π`` the score goes on as ``σ(cos θ − m sin m)``.
    The gradient is that of the margin, which insightface's arcface_torch leaves out. With ``proxies_per_class=3,
    pooling=MaxPooling()`` it is sub-center ArcFace.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        margin: m in [0, π/2], in radians: one number, ``[C]`` of the classes, or a `MarginRule`.
        scale: σ > 0.
        easy_margin: Whether samples more than 90° from their proxy have no margin, ``σ cos θ_i``, as an option of the
            authors' code.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = ArcFaceLoss(2, 2, margin=0.5, scale=1.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item()  # log(1 + e^(0 − cos 0.5))
    0.3476...
    """

    defaults = ProxyOptions(init=small_normal)
    margin: float | Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: Margin = 0.5,
        scale: float = 64.0,
        easy_margin: bool = False,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        self._set_margin(margin, check_radians)
        if not isinstance(easy_margin, bool):
            raise ValueError(f"easy_margin is {shown(easy_margin)}, but must be True or False.")
        self.easy_margin = easy_margin

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        margin = target_margin(self.margin, labels)
        if self.easy_margin:
            return torch.where(cosine > 0, wider_angle(cosine, margin), cosine)
        return angular_margin(cosine, margin)


class MagFaceLoss(MarginSoftmax):
    """ArcFace whose margin grows with the length of the embedding, which comes to measure the image's quality.

    ``mean_i softplus(N_i(σ) − σ cos(θ_i + m(a_i))) + λ mean_i(a_i/a_u² + 1/a_i)`` with ``a = clip(‖x‖, a_l, a_u)`` and
    ``m(a) = m_l + (m_u − m_l)(a − a_l)/(a_u − a_l)``; the gradient flows through a. Meng et al., MagFace, CVPR 2021,
    equations 3 and 4.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings, which must not be normalised by the model.
        margin_range: ``(m_l, m_u)`` with 0 ≤ m_l ≤ m_u ≤ π/2, in radians.
        norm_range: ``(a_l, a_u)`` with 0 < a_l < a_u, lengths of embeddings.
        norm_weight: λ ≥ 0.
        scale: σ > 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = MagFaceLoss(2, 2, scale=1.0, norm_weight=0.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss(torch.tensor([[10.0, 0.0]]), torch.tensor([0])).item()  # the least margin: log(1 + e^(0 − cos 0.45))
    0.3410...
    """

    defaults = ProxyOptions(init=unit_directions)
    reads_norms = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin_range: tuple[float, float] = (0.45, 0.8),
        norm_range: tuple[float, float] = (10.0, 110.0),
        norm_weight: float = 35.0,
        scale: float = 64.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, scale=scale, **options)
        for name, pair in {"margin_range": margin_range, "norm_range": norm_range}.items():
            if not (isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_number, pair))):
                raise ValueError(f"{name} is {shown(pair)}, but must be two numbers.")
        low, high = (check_radians("margin_range", bound) for bound in margin_range)
        if not low <= high:
            raise ValueError(f"margin_range is {margin_range}, but the longest embeddings take the larger: swap them.")
        if not 0 < norm_range[0] < norm_range[1]:
            raise ValueError(f"norm_range is {norm_range}, but must be two growing lengths above 0, as (10, 110).")
        self.margin_range, self.norm_range = (low, high), norm_range
        self.norm_weight = check_number("norm_weight", norm_weight, "a weight must be 0 or more", least=0)

    def with_margin(self, cosine: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        (low, high), (shortest, longest) = self.margin_range, self.norm_range
        share = (self._length(embeddings) - shortest) / (longest - shortest)
        return angular_margin(cosine, low + (high - low) * share)

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        length = self._length(embeddings)
        longer = length / self.norm_range[1] ** 2 + 1 / length
        return super().objective(positive, negative, labels, embeddings) + self.norm_weight * longer

    def _length(self, embeddings: Tensor) -> Tensor:
        return torch.linalg.vector_norm(embeddings, dim=1).clamp(*self.norm_range)


def _check_cosine_margin(name: str, value: float) -> float:
    return check_number(name, value, "is taken from a cosine: use 0 to 2, CosFace takes 0.35", least=0, below=2)


def check_radians(name: str, value: float) -> float:
    """Return ``value`` if it is an angle from 0 to π/2; else a `ValueError` that converts what may be degrees."""
    large = is_number(value) and value > math.pi / 2
    degrees = f" ({value} degrees are {math.radians(value):.4g})" if large else ""
    rule = f"is an angle in radians, 0 to π/2: convert degrees{degrees}"
    return check_number(name, value, rule, least=0, most=math.pi / 2)


def check_momentum(value: float) -> float:
    """Return ``value`` if it can be the weight of a batch in a moving average; else a `ValueError`."""
    return check_number(
        "momentum", value, "is a batch's share of the average: above 0, up to 1 for all", above=0, most=1
    )
