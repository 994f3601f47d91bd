"""Similarities of embeddings and proxies, defined by autograd and, for one chunk, written by hand.

Every similarity is a function of the inner product x·w and of the lengths of x and w: the streamed losses multiply a
chunk of unchanged proxies and never build a normalised copy. The scores of a chunk are ``[rows, batch]``, one row per
proxy, so that pooling over the proxies of a class and sums over the batch read contiguous memory.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.scores.derivative import by_hand

Queries = Float[Tensor, "batch features"]
Proxies = Float[Tensor, "rows features"]
TargetProxies = Float[Tensor, "batch proxies features"]
Scores = Float[Tensor, "rows batch"]
Slopes = tuple[Scores, Float[Tensor, "rows 1"] | None, Float[Tensor, "batch 1"] | None]

SHORTEST = 1e-12
"""Length below which a vector counts as zero; see `unit`."""


def _unit(x: Tensor) -> Tensor:
    squared = x.square().sum(-1, keepdim=True)
    directed = squared >= SHORTEST**2
    return x * torch.where(directed, torch.where(directed, squared, 1).rsqrt(), 0)


def unit_forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return unit vectors, and a tuple for `unit_backward`: the unit vectors and the lengths, ∞ for short vectors."""
    length = torch.threshold(torch.linalg.vector_norm(x, dim=-1, keepdim=True), SHORTEST, math.inf)
    directions = x / length
    return directions, (directions, length)


def unit_backward(grad: Tensor, directions: Tensor, length: Tensor) -> Tensor:
    """Compute the gradient of vectors from the gradient of their directions."""
    along = (grad * directions).sum(-1, keepdim=True)
    return torch.addcmul(grad, directions, along, value=-1).div_(length)


_unit_by_hand = by_hand(_unit, unit_forward, lambda grad, *more: [unit_backward(grad, *more[2])])


def unit(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Divide vectors by their Euclidean norm.

    A vector shorter than 1e-12, the bound of `torch.nn.functional.normalize`, becomes zero and gets no gradient. So
    does a vector whose square overflows, from a length of 1.8e19 in float32.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return _unit_by_hand(x)


def inverse_length(length: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """Compute ``1 / length``, or 0 for lengths that `unit` turns into zero."""
    return torch.where(length >= SHORTEST, length.reciprocal(), 0)


@runtime_checkable
class Similarity(Protocol):
    """A similarity of embeddings and proxies; larger is nearer."""

    needs_full_precision: ClassVar[bool]
    """Whether the matrix product of a chunk loses digits by cancellation if an embedding is near a proxy.

    If so, `pairs` gives the similarity to the target class, and the product is never computed in TF32 or bfloat16.
    """

    dense_on_gpu: ClassVar[bool] = False
    """Whether a GPU computes all scores at once by `dense`, if they fit."""

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Queries:
        """Prepare the embeddings by ordinary autograd; returns them unchanged by default."""
        return embeddings

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        """Return whether autograd through `dense` takes less time on a CPU than one chunk of all classes."""
        ...

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        """Compute all similarities at once by ordinary autograd: the definition of the similarity."""
        ...

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        """Compute the similarity of each query to its own set of proxies, by ordinary autograd."""
        ...

    def measure(
        self, proxies: Proxies, out: Float[Tensor, "rows 1"], lengths: Float[Tensor, "rows 1"] | None = None
    ) -> None:
        """Write the term of the scores that depends only on the proxy into `out`, once per step.

        ``lengths`` are the Euclidean norms of the proxies, if they are known.
        """

    def from_products(self, products: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> None:
        """Turn inner products into similarities in place, outside autograd: `dense` for one chunk."""

    def slopes(self, grad: Scores, scores: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> Slopes:
        """Compute the gradient g of the inner products, and the factors a and b; ``None`` stands for 0.

        The gradient of the proxies is ``g x + a w``; the gradient of the queries is the sum over all chunks of
        ``gᵀ w + b x``. This may overwrite ``grad`` and ``scores``.
        """
        return grad, None, None


@dataclass(frozen=True)
class Cosine(Similarity):
    """``x̂·ŵ``, in [-1, 1]."""

    needs_full_precision: ClassVar[bool] = False
    dense_on_gpu: ClassVar[bool] = True

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return rows * dim <= 2**17  # beyond, the unit copy of the proxies costs more than it saves

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Queries:
        return unit(embeddings)

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        return queries @ unit(proxies).T

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        return (unit(proxies) @ queries.unsqueeze(2)).squeeze(2)

    def measure(
        self, proxies: Proxies, out: Float[Tensor, "rows 1"], lengths: Float[Tensor, "rows 1"] | None = None
    ) -> None:
        out.copy_(inverse_length(_lengths(proxies) if lengths is None else lengths))

    def from_products(self, products: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> None:
        products.mul_(measures)

    def slopes(self, grad: Scores, scores: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> Slopes:
        # −ŵ·∂L/∂ŵ of every proxy, from the scores: the part of the gradient along w, which normalising removes.
        along = scores.mul_(grad).sum(1, keepdim=True).mul_(measures).mul_(measures).neg_()
        return grad.mul_(measures), along, None


@dataclass(frozen=True)
class Euclidean(Similarity):
    """``−‖x − w‖``, nothing normalised; in (−∞, 0].

    A distance whose square overflows, from 1.8e19 in float32, counts as 1.8e19 and has no gradient.
    """

    needs_full_precision: ClassVar[bool] = True  # ‖x‖² + ‖w‖² − 2x·w cancels if x is near w

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return batch * rows * dim <= 2**19  # cdist computes every difference instead of a matrix product

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        distances = torch.cdist(queries, proxies, compute_mode="donot_use_mm_for_euclid_dist")
        return -distances.clamp(max=_largest(distances))

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        distances = torch.linalg.vector_norm(queries.unsqueeze(1) - proxies, dim=-1)
        return -distances.clamp(max=_largest(distances))

    def measure(
        self, proxies: Proxies, out: Float[Tensor, "rows 1"], lengths: Float[Tensor, "rows 1"] | None = None
    ) -> None:
        torch.square(_lengths(proxies) if lengths is None else lengths, out=out)

    def from_products(self, products: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> None:
        squared = products.mul_(-2).add_(queries.square().sum(1)).add_(measures)
        # d = d²/√d²: a CPU has an instruction for the reciprocal root; torch's root is 30 times slower there.
        squared.mul_(squared.clamp(min=torch.finfo(squared.dtype).tiny).rsqrt_()).neg_().clamp_(max=0)
        squared.nan_to_num_(nan=-_largest(squared))  # ∞ · 1/√∞, or ∞ − ∞ if the terms overflow one by one

    def slopes(self, grad: Scores, scores: Scores, queries: Queries, measures: Float[Tensor, "rows 1"]) -> Slopes:
        # ∂(−d)/∂(x·w) = 1/d, and 0 if x = w: computed as d/d² with d² kept above 0, and as 0 for the largest d.
        tiny = scores.new_full((), -torch.finfo(scores.dtype).tiny)
        slopes = grad.mul_(scores).div_(torch.addcmul(tiny, scores, scores, value=-1, out=scores))
        return slopes, slopes.sum(1, keepdim=True).neg_(), slopes.sum(0).neg_().unsqueeze(1)


@dataclass(frozen=True)
class InnerProduct(Similarity):
    """``f(x)·w`` for features ``f(x)`` that a subclass computes in `prepare`; nothing is normalised."""

    needs_full_precision: ClassVar[bool] = True

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return False  # autograd's backward would run in the precision that the process allows

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        return queries @ proxies.T

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        return (proxies @ queries.unsqueeze(2)).squeeze(2)


def _lengths(proxies: Tensor) -> Tensor:
    return torch.linalg.vector_norm(proxies, dim=1, keepdim=True)


def _largest(like: Tensor) -> float:
    """Return the largest distance: the smallest power of 2 whose square overflows."""
    return 2.0 ** (math.frexp(torch.finfo(like.dtype).max)[1] // 2)
