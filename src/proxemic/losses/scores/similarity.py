"""Similarities of embeddings and proxies: their definition by autograd, and the gradient of a chunk written by hand.

The forward and the backward of a chunk, which the streamed losses run, never build a normalised copy of the proxies.
Scores of a chunk are laid out as ``[rows, batch]``, one row per proxy, so that pooling over the proxies of a class and
sums over the batch run over contiguous memory.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Queries = Float[Tensor, "batch features"]
Proxies = Float[Tensor, "rows features"]
TargetProxies = Float[Tensor, "batch proxies features"]
Scores = Float[Tensor, "rows batch"]

SHORTEST = 1e-12
"""Length below which a vector has no direction; see `unit`."""


def unit(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Vectors over their Euclidean norm.

    A vector shorter than 1e-12, the bound of `torch.nn.functional.normalize`, has no direction: it becomes zero and
    gets no gradient. So does one whose square overflows, from a length of 1.8e19 in float32.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    squared = x.square().sum(-1, keepdim=True)
    directed = squared >= SHORTEST**2
    return x * torch.where(directed, torch.where(directed, squared, 1).rsqrt(), 0)


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

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Queries:
        """What is computed from the embeddings alone, by ordinary autograd; the embeddings themselves by default."""
        return embeddings

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        """Whether `dense`, by autograd, takes less time than a chunk of all; measured on a CPU."""
        ...

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        """All similarities at once, by ordinary autograd: the definition."""
        ...

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        """The similarity of each query to the proxies in its own row, by ordinary autograd."""
        ...

    def forward(self, queries: Queries, proxies: Proxies, out: Scores) -> None:
        """`dense` for one chunk, one row per proxy, into ``out``, outside autograd, without a copy of the proxies."""
        ...

    def backward(
        self,
        grad: Scores,
        scores: Scores,
        queries: Queries,
        proxies: Proxies,
        grad_queries: Queries | None,
        grad_proxies: Proxies | None,
    ) -> None:
        """Add to ``grad_queries``, write to ``grad_proxies`` (``None``: not wanted); the scores are scratch."""
        ...


@dataclass(frozen=True)
class Cosine(Similarity):
    """``x̂·ŵ``, in [-1, 1]."""

    needs_full_precision: ClassVar[bool] = False

    def dense_wins(self, batch: int, rows: int, dim: int) -> bool:
        return rows * dim <= 2**17  # unit copies of the proxies are what it loses by

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Queries:
        return unit(embeddings)

    def dense(self, queries: Queries, proxies: Proxies) -> Float[Tensor, "batch rows"]:
        return queries @ unit(proxies).T

    def pairs(self, queries: Queries, proxies: TargetProxies) -> Float[Tensor, "batch proxies"]:
        return (unit(proxies) @ queries.unsqueeze(2)).squeeze(2)

    def forward(self, queries: Queries, proxies: Proxies, out: Scores) -> None:
        torch.mm(proxies, queries.T, out=out).mul_(
            inverse_length(torch.linalg.vector_norm(proxies, dim=1, keepdim=True))
        )

    def backward(
        self,
        grad: Scores,
        scores: Scores,
        queries: Queries,
        proxies: Proxies,
        grad_queries: Queries | None,
        grad_proxies: Proxies | None,
    ) -> None:
        scale = inverse_length(torch.linalg.vector_norm(proxies, dim=1, keepdim=True))
        # ŵ·∂L/∂ŵ of every proxy, from the scores: the part of the gradient along w, which ‖ŵ‖ = 1 removes.
        along = scores.mul_(grad).sum(1, keepdim=True).mul_(scale).mul_(scale)
        grad.mul_(scale)
        if grad_queries is not None:
            grad_queries.addmm_(grad.T, proxies)
        if grad_proxies is not None:
            torch.mm(grad, queries, out=grad_proxies).addcmul_(proxies, along, value=-1)


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

    def forward(self, queries: Queries, proxies: Proxies, out: Scores) -> None:
        torch.mm(proxies, queries.T, out=out).mul_(-2).add_(queries.square().sum(1))
        squared = out.add_(torch.linalg.vector_norm(proxies, dim=1, keepdim=True).square_())
        # d = d²/√d²: the reciprocal root is a processor's instruction, where torch's root on a CPU is 30 times slower.
        squared.mul_(squared.clamp(min=torch.finfo(out.dtype).tiny).rsqrt_()).neg_().clamp_(max=0)
        out.nan_to_num_(nan=-_largest(out))  # ∞ · 1/√∞, or of terms that overflow one by one, ∞ − ∞

    def backward(
        self,
        grad: Scores,
        scores: Scores,
        queries: Queries,
        proxies: Proxies,
        grad_queries: Queries | None,
        grad_proxies: Proxies | None,
    ) -> None:
        # ∂(−d)/∂x = −(x − w)/d, and 0 where x lies on w: 1/d as d/d², with d² kept from 0, and ∞ for the largest d.
        pull = grad.mul_(scores).div_(scores.square_().clamp_(min=torch.finfo(scores.dtype).tiny))
        if grad_queries is not None:
            grad_queries.addcmul_(queries, pull.sum(0).unsqueeze(1)).addmm_(pull.T, proxies, alpha=-1)
        if grad_proxies is not None:
            torch.mul(proxies, pull.sum(1, keepdim=True), out=grad_proxies)
            grad_proxies.addmm_(pull, queries, alpha=-1)


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

    def forward(self, queries: Queries, proxies: Proxies, out: Scores) -> None:
        torch.mm(proxies, queries.T, out=out)

    def backward(
        self,
        grad: Scores,
        scores: Scores,
        queries: Queries,
        proxies: Proxies,
        grad_queries: Queries | None,
        grad_proxies: Proxies | None,
    ) -> None:
        if grad_queries is not None:
            grad_queries.addmm_(grad.T, proxies)
        if grad_proxies is not None:
            torch.mm(grad, queries, out=grad_proxies)


def _largest(like: Tensor) -> float:
    """The largest distance: the smallest power of 2 whose square overflows."""
    return 2.0 ** (math.frexp(torch.finfo(like.dtype).max)[1] // 2)
