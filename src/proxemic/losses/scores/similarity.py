"""Similarities of embeddings and proxies: their definition by autograd, and that of a chunk, written by hand.

Every similarity is a function of the inner products x·w and of the lengths of x and w: the streamed losses multiply a
chunk of proxies as they are, and never build a normalised copy of them. Scores of a chunk are laid out as
``[rows, batch]``, one row per proxy, so that pooling over the proxies of a class and sums over the batch run over
contiguous memory.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.scores.derivative import by_hand

Queries = Float[Tensor, "batch features"]
Proxies = Float[Tensor, "rows features"]
TargetProxies = Float[Tensor, "batch proxies features"]
Scores = Float[Tensor, "rows batch"]
Slopes = tuple[Scores, Float[Tensor, "rows 1"] | None, Float[Tensor, "batch 1"] | None]

SHORTEST = 1e-12
"""Length below which a vector has no direction; see `unit`."""


def _unit(x: Tensor) -> Tensor:
    squared = x.square().sum(-1, keepdim=True)
    directed = squared >= SHORTEST**2
    return x * torch.where(directed, torch.where(directed, squared, 1).rsqrt(), 0)


def unit_forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return unit vectors, and with them what `unit_backward` needs: themselves and the lengths, ∞ for short ones."""
    length = F.threshold(torch.linalg.vector_norm(x, dim=-1, keepdim=True), SHORTEST, math.inf)
    directions = x / length
    return directions, (directions, length)


def unit_backward(grad: Tensor, directions: Tensor, length: Tensor) -> Tensor:
    """Compute the gradient of vectors from that of their directions."""
    along = (grad * directions).sum(-1, keepdim=True)
    return torch.addcmul(grad, directions, along, value=-1).div_(length)


_unit_by_hand = by_hand(_unit, unit_forward, lambda grad, *more: [unit_backward(grad, *more[2])])


def unit(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Divide vectors by their Euclidean norm.

    A vector shorter than 1e-12, the bound of `torch.nn.functional.normalize`, has no direction: it becomes zero and
    gets no gradient. So does one whose square overflows, from a length of 1.8e19 in float32.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return _unit_by_hand(x)


def inverse_length(length: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """``1 / length``, and 0 where `unit` gives 0."""
    return torch.where(length >= SHORTEST, length.reciprocal(), 0)


@runtime_checkable
class Similarity(Protocol):
    """A similarity of embeddings and proxies; larger is nearer."""

    needs_full_precision: ClassVar[bool]
    """Whether the chunk's matrix product loses digits by cancellation as an embedding nears a proxy.

    Then the similarity to the target class is taken from `pairs`, and the product is never computed in TF32 or
    bfloat16.
    """

    dense_on_gpu: ClassVar[bool] = False
    """Whether a GPU computes all scores at once by `dense`, where they fit."""

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Queries:
        """Compute what depends on the embeddings alone, by ordinary autograd; the embeddings themselves by default."""
        return embeddings

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        """Return whether `dense`, by autograd, takes less time than a chunk of all; measured on a CPU."""
        ...

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        """Compute all similarities at once, by ordinary autograd: the definition."""
        ...

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        """Compute the similarity of each query to the proxies in its own row, by ordinary autograd."""
        ...

    def measure(self, proxies: Proxies, out: Float[Tensor, "rows 1"]) -> None:
        """Write into `out`, once per step, the terms of the scores that depend on each proxy alone."""

    def from_products(self, products: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> None:
        """`dense` for one chunk, outside autograd: turn the inner products of all rows into similarities, in place."""

    def slopes(self, grad: Scores, scores: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> Slopes:
        """Compute the gradient g of the inner products, and factors a and b, ``None`` for 0.

        The gradient of the proxies is ``g x + a w``, that of the queries the sum over all chunks of ``gᵀ w + b x``.
        Both arguments are scratch.
        """
        return grad, None, None


@dataclass(frozen=True)
class Cosine(Similarity):
    """``x̂·ŵ``, in [-1, 1]."""

    needs_full_precision: ClassVar[bool] = False
    dense_on_gpu: ClassVar[bool] = True

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return rows * dim <= 2**17  # unit copies of the proxies are what it loses by

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Queries:
        return unit(embeddings)

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        return queries @ unit(proxies).T

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        return (unit(proxies) @ queries.unsqueeze(2)).squeeze(2)

    def measure(self, proxies: Proxies, out: Float[Tensor, "rows 1"]) -> None:
        out.copy_(inverse_length(torch.linalg.vector_norm(proxies, dim=1, keepdim=True)))

    def from_products(self, products: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> None:
        products.mul_(measures)

    def slopes(self, grad: Scores, scores: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> Slopes:
        # −ŵ·∂L/∂ŵ of every proxy, from the scores: the part of the gradient along w, which ‖ŵ‖ = 1 removes.
        along = scores.mul_(grad).sum(1, keepdim=True).mul_(measures).mul_(measures).neg_()
        return grad.mul_(measures), along, None


@dataclass(frozen=True)
class Euclidean(Similarity):
    """``−‖x − w‖``, nothing normalised; in (−∞, 0].

    A distance whose square overflows, from 1.8e19 in float32, is taken for 1.8e19 and has no gradient.
    """

    needs_full_precision: ClassVar[bool] = True  # ‖x‖² + ‖w‖² − 2x·w cancels as x nears its proxy, as it is to

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return batch * rows * dim <= 2**19  # each difference is made: no matrix product

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        distances = torch.cdist(queries, proxies, compute_mode="donot_use_mm_for_euclid_dist")
        return -distances.clamp(max=_largest(distances))

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        distances = torch.linalg.vector_norm(queries.unsqueeze(1) - proxies, dim=-1)
        return -distances.clamp(max=_largest(distances))

    def measure(self, proxies: Proxies, out: Float[Tensor, "rows 1"]) -> None:
        torch.linalg.vector_norm(proxies, dim=1, keepdim=True, out=out).square_()

    def from_products(self, products: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> None:
        squared = products.mul_(-2).add_(queries.square().sum(1)).add_(measures)
        # d = d²/√d²: the reciprocal root is a processor's instruction, where torch's root on a CPU is 30 times slower.
        squared.mul_(squared.clamp(min=torch.finfo(squared.dtype).tiny).rsqrt_()).neg_().clamp_(max=0)
        squared.nan_to_num_(nan=-_largest(squared))  # ∞ · 1/√∞, or of terms that overflow one by one, ∞ − ∞

    def slopes(self, grad: Scores, scores: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> Slopes:
        # ∂(−d)/∂(x·w) = 1/d, and 0 where x lies on w: 1/d as d/d², with d² kept from 0, and ∞ for the largest d.
        tiny = scores.new_full((), -torch.finfo(scores.dtype).tiny)
        slopes = grad.mul_(scores).div_(torch.addcmul(tiny, scores, scores, value=-1, out=scores))
        return slopes, slopes.sum(1, keepdim=True).neg_(), slopes.sum(0).neg_().unsqueeze(1)


@dataclass(frozen=True)
class InnerProduct(Similarity):
    """``f(x)·w`` for features ``f`` of the embedding, given by a subclass's `prepare`; nothing normalised."""

    needs_full_precision: ClassVar[bool] = True

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return False  # autograd's backward would run in whatever precision the process allows

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        return queries @ proxies.T

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        return (proxies @ queries.unsqueeze(2)).squeeze(2)


def _largest(like: Tensor) -> float:
    """Return the largest distance: the smallest power of 2 whose square overflows."""
    return 2.0 ** (math.frexp(torch.finfo(like.dtype).max)[1] // 2)
