"""Softmax of Euclidean distances, and its warped form, which puts the loss's minimum at a distance α from the proxy."""

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

Distances = Callable[..., Any]  # of a tensor; its types are not checked, so that a recipe may name torch.sqrt


def warp(
    distance: Float[Tensor, "*shape"], *, alpha: float, k1: float, k2: float, delta_scale: float = 1.0
) -> Float[Tensor, "*shape"]:
    """``f1(t) = k1·t + Δ`` for ``t < α`` and ``k2·t + (1 − k2)·α`` from there on (warping paper, equation 7).

    ``Δ = delta_scale · (t − k1·t)`` is a value without gradient: at ``delta_scale = 1`` the value is ``t`` below α and
    only the gradient is warped.

    >>> t = torch.tensor([1.0, 3.0], requires_grad=True)
    >>> value = warp(t, alpha=2.0, k1=0.5, k2=2.0)
    >>> value, torch.autograd.grad(value.sum(), t)[0]
    (tensor([1., 4.], grad_fn=<WhereBackward0>), tensor([0.5000, 2.0000]))
    """
    below = k1 * distance + delta_scale * (1 - k1) * distance.detach()
    return torch.where(distance < alpha, below, k2 * distance + (1 - k2) * alpha)


@dataclass(frozen=True)
class Power:
    """``t^exponent``, a function for `WarpedSoftmaxLoss` (warping paper, table III: 1.5).

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
    """``mean_i softplus(T·‖x_i − w_{y_i}‖ + LSE_{j≠y_i}(−T‖x_i − w_j‖))``, nothing normalised.

    Equation 4 of the warping paper.

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
        alpha: α ≥ 0, the distance from the proxy that attracts; at 0 only the pull inwards is left.
        k1: Slope below α, in (0, 1]: pushes outwards; 1 turns that off.
        k2: Slope above α, ≥ 1: pulls inwards; 1 turns that off.
        delta_scale: ≥ 1, the factor of Δ; 1 keeps the unwarped value, more acts like a margin.
        temperature: T > 0; it multiplies the distances.
        f1: Elementwise function of the distance to the target class's proxy.
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
            raise ValueError("f2 has parameters of its own, which would not be trained: give a fixed function.")
        if f1 is None:
            if alpha is None or k1 is None or k2 is None:
                raise ValueError(
                    f"alpha={alpha}, k1={k1}, k2={k2}: the warp needs all three (for example 28.4, 0.93, 1.15), or f1 "
                    "and f2."
                )
            check_warp(alpha, k1, k2)
            check_number("delta_scale", delta_scale, "must be at least 1, which keeps the unwarped value", least=1)
            if f2 is not None:
                raise ValueError("f2 came without f1: give both functions, or alpha, k1 and k2 alone.")
            f1 = partial(warp, alpha=alpha, k1=k1, k2=k2, delta_scale=delta_scale)
        elif (alpha, k1, k2, delta_scale) != (None, None, None, 1):
            raise ValueError(
                "f1 came with alpha, k1, k2 or delta_scale, which belong to the warp: give one of the two."
            )
        super().__init__(num_classes, embedding_size, temperature=temperature, **options)
        self.f1 = f1
        if f2 is not None:
            self.scoring = replace(self.scoring, transform=partial(_of_distance, f2))


def check_warp(alpha: float, k1: float, k2: float) -> None:
    """Raise `ValueError` unless ``α ≥ 0`` and ``0 < k1 ≤ 1 ≤ k2``: figures 6 and 7 of the paper begin with no warp."""
    check_number("alpha", alpha, "must be a distance of at least 0", least=0)
    check_number("k1", k1, "the slope below alpha must be above 0 and at most 1", above=0, most=1)
    check_number("k2", k2, "the slope above alpha must be at least 1", least=1)


def _of_distance(f2: Distances, score: Tensor) -> Tensor:
    """``f2`` as a transform of the class score, which is minus the distance."""
    return -_at(f2, -score)


def _at(function: Distances, distance: Tensor) -> Tensor:
    """Apply a function to distances; at 0, where its slope may be infinite, as the root's is, it gets no gradient."""
    apart = distance > 0
    at_zero = function(torch.zeros_like(distance[:1])).detach()
    return torch.where(apart, function(torch.where(apart, distance, 1)), at_zero)
