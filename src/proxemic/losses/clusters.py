"""k-means of the embeddings of a class, to initialise its proxies at the centres of clusters."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

_STARTS, _MOST_STEPS = 4, 100


def k_means(
    points: Float[Tensor, "points dim"], clusters: int, *, spherical: bool, seed: int = 0
) -> Float64[Tensor, "centers dim"]:
    """Compute cluster centres by k-means in float64; the best of several starts has the least squared distances.

    Spherical k-means has points and centres of length 1. If there are no more different points than clusters, each is a
    centre.

    >>> k_means(torch.tensor([[0.0], [0.2], [9.0], [9.2]]), 2, spherical=False).sort(0).values.flatten().tolist()
    [0.1..., 9.09...]
    """
    points = points.double().cpu()
    if spherical:
        points = normalize(points, dim=1)
    different = points.unique(dim=0)
    if len(different) <= clusters:
        return different
    generator = torch.Generator().manual_seed(seed)
    candidates = [_lloyd(points, _spread(points, clusters, generator), spherical) for _ in range(_STARTS)]
    return min(candidates, key=lambda centers: float(_squared(points, centers).amin(1).sum()))


def _spread(
    points: Float64[Tensor, "points dim"], clusters: int, generator: torch.Generator
) -> Float64[Tensor, "clusters dim"]:
    """Draw points one by one, with probability proportional to the squared distance to the nearest one (k-means++)."""
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(chosen) < clusters:
        squared = _squared(points, points[chosen]).amin(1)
        chosen.append(int(torch.multinomial(squared, 1, generator=generator)))
    return points[chosen]


def _lloyd(
    points: Float64[Tensor, "points dim"], centers: Float64[Tensor, "clusters dim"], spherical: bool
) -> Float64[Tensor, "clusters dim"]:
    """Move the centres until the nearest centre of every point stays the same."""
    nearest: Int64[Tensor, " points"] | None = None
    for _ in range(_MOST_STEPS):
        before, nearest = nearest, _squared(points, centers).argmin(1)
        if before is not None and torch.equal(before, nearest):
            break
        counts = nearest.bincount(minlength=len(centers))
        sums = torch.zeros_like(centers).index_add_(0, nearest, points)
        means = normalize(sums, dim=1) if spherical else sums / counts[:, None]
        centers = torch.where(counts[:, None] > 0, means, centers)  # a cluster may have lost all points
    return centers


def _squared(
    points: Float64[Tensor, "points dim"], centers: Float64[Tensor, "clusters dim"]
) -> Float64[Tensor, "points clusters"]:
    # Not by matrix products, whose rounding can make the distance of a point to itself nonzero, even negative.
    return torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist").square()
