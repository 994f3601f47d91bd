"""Shared points and their distances in float64."""

import torch
from torch import Tensor

from proxemic.metrics.exact import Distance

DISTANCES: tuple[Distance, ...] = ("cosine", "euclidean")


def sample(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def oracle(queries: Tensor, gallery: Tensor, distance: str) -> Tensor:
    """Compute distances by their definition."""
    left, right = queries.double(), gallery.double()
    if distance == "euclidean":
        return (left[:, None] - right).square().sum(2).sqrt()
    norms = left.norm(dim=1)[:, None] * right.norm(dim=1)
    return 1 - left @ right.T / norms
