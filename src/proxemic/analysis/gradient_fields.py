"""Compute the negative gradient of a loss for an embedding at many points, and plot it in two dimensions."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.analysis.drawing import draw_circle, new_figure
from proxemic.analysis.gradient_characteristics import at_rest
from proxemic.losses import PairwiseLoss, ProxyLoss
from proxemic.losses.checks import check_positive
from proxemic.losses.scores.similarity import unit

Rest = tuple[Float[Tensor, "others dim"], Int[Tensor, " others"]]

TARGET, WRONG = "#0072b2", "#d55e00"


def gradient_field(
    loss: ProxyLoss | PairwiseLoss, points: Float[Tensor, "points dim"], label: int, *, rest: Rest | None = None
) -> Float[Tensor, "points dim"]:
    """Compute ``−∂L/∂x`` for an embedding x of class ``label`` at each of the points in turn, all else fixed.

    Each point is a batch of its own, together with ``rest``. Losses that sum over the samples of the batch
    (Proxy-Anchor, MPA, the pairs of `PairwiseLoss`) depend on ``rest``.

    Args:
        loss: A loss of embeddings of this dimension.
        points: Positions of the embedding ``[points, dim]``, at least one.
        label: Class of the embedding, in [0, num_classes).
        rest: Fixed embeddings and labels of the rest of the batch; None for an empty rest.

    Raises:
        ValueError: If an argument is not allowed, or the loss remembers earlier batches.

    >>> from proxemic.losses import EuclideanSoftmaxLoss
    >>> loss = EuclideanSoftmaxLoss(2, 2, init=lambda w: w.copy_(torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]])))
    >>> gradient_field(loss, torch.tensor([[1.0, 0.0]]), label=0)[0, 0]  # half way: to the target proxy, from the other
    tensor(-1.)
    """
    return _walk(loss, points, label, rest)[1]


def loss_values(
    loss: ProxyLoss | PairwiseLoss, points: Float[Tensor, "points dim"], label: int, *, rest: Rest | None = None
) -> Float[Tensor, " points"]:
    """Compute the loss for an embedding at each of the points in turn; arguments as in `gradient_field`.

    >>> from proxemic.losses import ProxyNCALoss
    >>> loss = ProxyNCALoss(2, 2, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
    >>> loss_values(loss, torch.eye(2), label=0)
    tensor([-2.,  2.])
    """
    return _walk(loss, points, label, rest)[0]


def plot_gradient_field(
    loss: ProxyLoss | PairwiseLoss,
    label: int = 0,
    *,
    radius: float = 1.0,
    half_width: float | None = None,
    rest: Rest | None = None,
    axes: Any = None,
) -> Any:
    """Draw the `gradient_field` of a loss of two-dimensional embeddings as arrows.

    For losses of cosines, the embedding moves around a circle, and arrows show the force along the circle, ``−∂L/∂θ``
    per radian. For losses of distances, it moves on a grid, and the length of an arrow is the square root of the force,
    because forces differ widely. Colour and length show the same, and the largest force is printed. Stars are proxies
    of the embedding's class, crosses are proxies of other classes, and dots are the rest of the batch.

    Args:
        loss: A loss of embedding size 2.
        label: Class of the embedding.
        radius: Length of the embedding on the circle, on which only MagFace and AdaFace depend.
        half_width: Half-width of the square around the origin for a grid; None draws the circle.
        rest: Rest of the batch, as in `gradient_field`.
        axes: Matplotlib axes to draw on; None makes a new figure.

    Returns:
        The axes; ``axes.figure.savefig(path)`` writes the plot.

    Raises:
        ValueError: If an argument is not allowed.

    >>> from proxemic.losses import NormalizedSoftmaxLoss
    >>> plot_gradient_field(NormalizedSoftmaxLoss(4, 2)).get_aspect()
    1.0
    """
    if loss.embedding_size != 2:
        raise ValueError(f"loss has embedding_size {loss.embedding_size}, but a plot is flat: make one of size 2.")
    check_positive("radius", radius)
    reach = 1.4 if half_width is None else check_positive("half_width", half_width)
    axes = new_figure(4, 4).subplots() if axes is None else axes
    if half_width is None:
        draw_circle(axes, (0, 0), 1, color="#bbbbbb", linewidth=1, zorder=0)
        turn = torch.arange(0, 360, 10) * (math.pi / 180)
        outward, along = torch.stack((turn.cos(), turn.sin()), 1), torch.stack((-turn.sin(), turn.cos()), 1)
        forces = gradient_field(loss, radius * outward, label, rest=rest)
        torques = radius * torch.linalg.vecdot(forces, along).unsqueeze(1) * along
        _draw_arrows(axes, 1.15 * outward, torques, longest=0.22, root=False)  # clear of the proxies
    else:
        line = torch.linspace(-0.95 * half_width, 0.95 * half_width, 18)
        places = torch.cartesian_prod(line, line)
        forces = gradient_field(loss, places, label, rest=rest)
        _draw_arrows(axes, places, forces, longest=0.125 * half_width, root=True)
    _draw_points(axes, loss, label, rest, directions=half_width is None)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    return axes


def _walk(
    loss: ProxyLoss | PairwiseLoss, points: Tensor, label: int, rest: Rest | None
) -> tuple[Float[Tensor, " points"], Float[Tensor, "points dim"]]:
    """Compute the values of the loss and the forces."""
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(
            f"points have shape {list(points.shape)}, but are positions of an embedding: pass [points, dim]."
        )
    if getattr(loss, "memory_size", 0):
        raise ValueError(
            f"memory_size is {loss.memory_size}, so that points would influence later ones: give a loss without."
        )
    others, labels = (points[:0], torch.empty(0, dtype=torch.long)) if rest is None else rest
    labels = torch.cat((torch.tensor([label]), labels)).to(points.device)
    values, forces = [], []
    with torch.enable_grad(), at_rest(loss):
        for point in points.detach():
            x = point.clone().requires_grad_()
            value = loss(torch.cat((x.unsqueeze(0), others.to(point))), labels)
            values.append(value.detach())
            forces.append(-torch.autograd.grad(value, x)[0])
    return torch.stack(values), torch.stack(forces)


def _draw_arrows(
    axes: Any, places: Float[Tensor, "points 2"], forces: Float[Tensor, "points 2"], *, longest: float, root: bool
) -> None:
    size = forces.norm(dim=1)
    largest = size.max()
    # No force anywhere leaves nothing to divide by.
    share = size / largest.clamp(min=torch.finfo(size.dtype).tiny)
    if root:
        share = share.sqrt()
    arrows = longest * share.unsqueeze(1) * unit(forces)
    axes.quiver(
        *places.T, *arrows.T, share, cmap="Purples", clim=(-0.5, 1), pivot="mid" if root else "tail",
        angles="xy", scale_units="xy", scale=1, width=0.01, headwidth=3.4, headlength=3.6, headaxislength=3.2,
    )  # fmt: skip
    axes.set_xlabel(f"largest force {largest:.3g}" + ("" if root else " per radian"), fontsize=8)


def _draw_points(axes: Any, loss: ProxyLoss | PairwiseLoss, label: int, rest: Rest | None, *, directions: bool) -> None:
    marks = []
    if isinstance(loss, ProxyLoss):
        proxies = enumerate(loss.proxies.detach())
        marks = [(point, number, "*" if number == label else "X") for number, points in proxies for point in points]
    if rest is not None:
        marks += [(point, number, "o") for point, number in zip(rest[0], rest[1].tolist(), strict=True)]
    for point, number, marker in marks:
        place = (unit(point) if directions else point).tolist()
        away = (-17 * place[0], -17 * place[1]) if directions else (0, -15)
        colour = TARGET if number == label else WRONG
        axes.plot(*place, marker=marker, color=colour, markersize=15 if marker == "*" else 10, markeredgecolor="white")
        axes.annotate(
            str(number), place, away, textcoords="offset points", color=colour, fontsize=9, weight="bold",
            ha="center", va="center", bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
        )  # fmt: skip
