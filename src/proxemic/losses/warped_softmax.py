"""Softmax of Euclidean distances, and its warped form, whose minimum lies at a distance α from the proxy."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.losses.checks import check_callable, check_number, check_positive
from proxemic.losses.options import ProxyOptions
from proxemic.losses.scores import Euclidean, Scoring, SoftmaxPooling
from proxemic.losses.softmax import SoftmaxLoss

Distances = Callable[..., Any]  # from tensor to tensor; untyped, so that a recipe may name torch.sqrt


def warp(
    distance: Float[Tensor, "*shape"], *, alpha: float, k1: float, k2: float, delta_scale: float = 1.0
) -> Float[Tensor, "*shape"]:
    """Compute ``f1(t) = k1·t + Δ`` for ``t < α`` and ``k2·t + (1 − k2)·α`` beyond (warping paper, equation 7).

    ``Δ = delta_scale · (t − k1·t)`` has no gradient: with ``delta_scale = 1``, the value below α is ``t`` and only the
    gradient is warped.

    >>> t = torch.tensor([1.0, 3.0], requires_grad=True)
    >>> value = warp(t, alpha=2.0, k1=0.5, k2=2.0)
    >>> value, torch.autograd.grad(value.sum(), t)[0]
    (tensor([1., 4.], grad_fn=<WhereBackward0>), tensor([0.5000, 2.0000]))
    """
    below = k1 * distance + delta_scale * (1 - k1) * distance.detach()
    return torch.where(distance < alpha, below, k2 * distance + (1 - k2) * alpha)


@dataclass(frozen=True)
class Power:
    """``t^exponent``, a function for `WarpedSoftmaxLoss` (the warping paper's table III uses 1.5).

    Args:
        exponent: > 0.

    >>> Power(1.5)(torch.tensor([0.0, 4.0]))
    tensor([0., 8.])
    """

    exponent: float

    def __post_init__(self) -> None:
        check_positive("exponent", self.exponent)

    def __call__(self, distance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return distance**self.exponent


class EuclideanSoftmaxLoss(SoftmaxLoss):
    """``mean_i softplus(T·‖x_i − w_{y_i}‖ + LSE_{j≠y_i}(−T‖x_i − w_j‖))``, without normalisation.

    Source: equation 4 of the warping paper.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        temperature: T > 0; it multiplies the distances.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    >>> loss = EuclideanSoftmaxLoss(2, 1, init=lambda w: w.copy_(torch.tensor([[[0.0]], [[2.0]]])))
    >>> loss(torch.tensor([[0.5]]), torch.tensor([0])).item()  # log(1 + e^(0.5 − 1.5))
    0.3132...
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling())

    def __init__(
        self, num_classes: int, embedding_size: int, *, temperature: float = 1.0, **options: Unpack[ProxyOptions]
    ) -> None:
        scoring = Scoring(check_positive("temperature", temperature), similarity=Euclidean())
        super().__init__(num_classes, embedding_size, scoring=scoring, **options)
        self.f1: Distances | None = None

    def target_logits(self, positive: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.scoring.scale * (positive if self.f1 is None else -_at(self.f1, -positive))


class WarpedSoftmaxLoss(EuclideanSoftmaxLoss):
    """``mean_i softplus(T·f1(t_i) + LSE_{j≠y_i}(−T·f2(‖x_i − w_j‖)))`` with ``t_i = ‖x_i − w_{y_i}‖`` (equation 8).

    Either ``alpha``, ``k1`` and ``k2`` of the paper's `warp` (f1; f2 is the identity), or any ``f1`` and ``f2``.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        alpha: α ≥ 0, the distance from the proxy to which embeddings are drawn; with 0 they are only pulled inwards.
        k1: Slope below α, in (0, 1]: pushes outwards; 1 turns this off.
        k2: Slope above α, ≥ 1: pulls inwards; 1 turns this off.
        delta_scale: ≥ 1, the factor of Δ; 1 keeps the unwarped value, larger factors act like a margin.
        temperature: T > 0; it multiplies the distances.
        f1: Elementwise function of the distance to the target proxy.
        f2: Elementwise function of the distances to the others; ``None`` is the identity.
        **options: The keywords of every proxy loss, see `ProxyOptions`.

    Raises:
        ValueError: If an argument is out of range, or neither or both of the warp and ``f1`` are given.

    >>> loss = WarpedSoftmaxLoss(
    ...     2, 1, alpha=0.25, k1=0.5, k2=2.0, init=lambda w: w.copy_(torch.tensor([[[0.0]], [[2.0]]]))
    ... )
    >>> loss(torch.tensor([[0.5]]), torch.tensor([0])).item()  # log(1 + e^(0.75 − 1.5))
    0.3868...
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        alpha: float | None = None,
        k1: float | None = None,
        k2: float | None = None,
        delta_scale: float = 1.0,
        temperature: float = 1.0,
        f1: Distances | None = None,
        f2: Distances | None = None,
        **options: Unpack[ProxyOptions],
    ) -> None:
        for name, function in {"f1": f1, "f2": f2}.items():
            if function is not None:
                check_callable(name, function, "a function of a tensor of distances, for example torch.sqrt")
        if isinstance(f2, nn.Module) and any(True for _ in f2.parameters()):
            raise ValueError("f2 has parameters, which would not be trained: give a fixed function.")
        if f1 is None:
            if alpha is None or k1 is None or k2 is None:
                raise ValueError(
                    f"alpha={alpha}, k1={k1}, k2={k2}: the warp needs all three (for example 28.4, 0.93, 1.15), or f1 "
                    "and f2."
                )
            check_warp(alpha, k1, k2)
            check_number("delta_scale", delta_scale, "must be at least 1, which keeps the unwarped value", least=1)
            if f2 is not None:
                raise ValueError("f2 is given without f1: give both functions, or only alpha, k1 and k2.")
            f1 = partial(warp, alpha=alpha, k1=k1, k2=k2, delta_scale=delta_scale)
        elif (alpha, k1, k2, delta_scale) != (None, None, None, 1):
            raise ValueError("f1 is given with alpha, k1, k2 or delta_scale, which define the warp: give one of both.")
        super().__init__(num_classes, embedding_size, temperature=temperature, **options)
        self.f1 = f1
        if f2 is not None:
            self.scoring = replace(self.scoring, transform=partial(_of_distance, f2))


def check_warp(alpha: float, k1: float, k2: float) -> None:
    """Raise `ValueError` unless ``α ≥ 0`` and ``0 < k1 ≤ 1 ≤ k2``; figures 6 and 7 of the paper include no warp."""
    check_number("alpha", alpha, "must be a distance of at least 0", least=0)
    check_number("k1", k1, "the slope below alpha must be above 0 and at most 1", above=0, most=1)
    check_number("k2", k2, "the slope above alpha must be at least 1", least=1)


def _of_distance(f2: Distances, score: Tensor) -> Tensor:
    """Apply ``f2`` to class scores, which are minus distances."""
    return -_at(f2, -score)


def _at(function: Distances, distance: Tensor) -> Tensor:
    """Apply a function to distances, without a gradient at 0, where its slope may be infinite, as that of a root."""
    apart = distance > 0
    at_zero = function(torch.zeros_like(distance[:1])).detach()
    return torch.where(apart, function(torch.where(apart, distance, 1)), at_zero)
