"""How near an embedding is to a proxy, with the gradient written by hand.

A similarity is three functions: a dense one in ordinary PyTorch, which is the definition, and a
forward and a backward for one chunk of proxies, which is what the streamed losses run. Neither of the
last two ever builds a normalised copy of the proxies.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Cosine", "Euclidean", "Similarity", "unit"]


def unit(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Vectors over their Euclidean norm; a zero vector, which has no direction, stays zero and gets no gradient.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x * inverse_norm(x).unsqueeze(-1)


def inverse_norm(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows"]:
    """``1 / ‖x‖``, and 0 for the zero vector."""
    squared = x.square().sum(-1)
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).rsqrt(), 0)


@runtime_checkable
class Similarity(Protocol):
    """A similarity of embeddings and proxies; larger is nearer."""

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """What the embeddings become before any proxy is seen (ordinary autograd)."""
        ...

    def dense(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "batch rows"]:
        """All similarities at once, by ordinary autograd: the definition."""
        ...

    def forward(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "batch rows"]:
        """The same for one chunk, outside autograd and without a copy of the proxies."""
        ...

    def backward(
        self,
        grad: Float[Tensor, "batch rows"],
        scores: Float[Tensor, "batch rows"],
        queries: Float[Tensor, "batch dim"],
        proxies: Float[Tensor, "rows dim"],
        grad_queries: Float[Tensor, "batch dim"] | None,
        grad_proxies: Float[Tensor, "rows dim"] | None,
    ) -> None:
        """Add to ``grad_queries`` and write to ``grad_proxies``; ``None`` is not wanted. May overwrite ``grad``."""
        ...

    def own(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "batch proxies dim"]
    ) -> Float[Tensor, "batch proxies"] | None:
        """Similarity to the proxies of the own class where the chunk's matrix product is not exact enough."""
        ...


@dataclass(frozen=True)
class Cosine:
    """``x̂·ŵ``, in [-1, 1]."""

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        return unit(embeddings)

    def dense(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "batch rows"]:
        return queries @ unit(proxies).T

    def forward(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "batch rows"]:
        return (queries @ proxies.T).mul_(inverse_norm(proxies))

    def backward(
        self,
        grad: Float[Tensor, "batch rows"],
        scores: Float[Tensor, "batch rows"],
        queries: Float[Tensor, "batch dim"],
        proxies: Float[Tensor, "rows dim"],
        grad_queries: Float[Tensor, "batch dim"] | None,
        grad_proxies: Float[Tensor, "rows dim"] | None,
    ) -> None:
        scale = inverse_norm(proxies)
        # ŵ·∂L/∂ŵ of every proxy, from the scores: the part of the gradient along w, which ‖ŵ‖ = 1 removes.
        along = torch.linalg.vecdot(grad, scores, dim=0)
        grad = grad.mul_(scale)
        if grad_queries is not None:
            grad_queries.addmm_(grad, proxies)
        if grad_proxies is not None:
            torch.mm(grad.T, queries, out=grad_proxies)
            grad_proxies.addcmul_(proxies, (along * scale.square()).unsqueeze(1), value=-1)

    def own(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "batch proxies dim"]
    ) -> Float[Tensor, "batch proxies"] | None:
        return None


@dataclass(frozen=True)
class Euclidean:
    """``−‖x − w‖``, nothing normalised; in (−∞, 0]."""

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        return embeddings

    def dense(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "batch rows"]:
        return -torch.cdist(queries, proxies, compute_mode="donot_use_mm_for_euclid_dist")

    def forward(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "batch rows"]:
        squared = torch.addmm(queries.square().sum(1, keepdim=True), queries, proxies.T, alpha=-2)
        return squared.add_(proxies.square().sum(1)).clamp_(min=0).sqrt_().neg_()

    def backward(
        self,
        grad: Float[Tensor, "batch rows"],
        scores: Float[Tensor, "batch rows"],
        queries: Float[Tensor, "batch dim"],
        proxies: Float[Tensor, "rows dim"],
        grad_queries: Float[Tensor, "batch dim"] | None,
        grad_proxies: Float[Tensor, "rows dim"] | None,
    ) -> None:
        # ∂(−d)/∂x = −(x − w)/d, and 0 where x lies on w.
        pull = grad.div_(scores).masked_fill_(scores == 0, 0)
        if grad_queries is not None:
            grad_queries.addcmul_(queries, pull.sum(1, keepdim=True)).addmm_(pull, proxies, alpha=-1)
        if grad_proxies is not None:
            torch.mul(proxies, pull.sum(0).unsqueeze(1), out=grad_proxies)
            grad_proxies.addmm_(pull.T, queries, alpha=-1)

    def own(
        self, queries: Float[Tensor, "batch dim"], proxies: Float[Tensor, "batch proxies dim"]
    ) -> Float[Tensor, "batch proxies"] | None:
        # ‖x‖² + ‖w‖² − 2x·w loses all digits as x comes to lie on its proxy, which is where training goes.
        return -torch.linalg.vector_norm(queries.unsqueeze(1) - proxies, dim=-1)
