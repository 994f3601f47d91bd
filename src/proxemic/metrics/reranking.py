"""Refinements of a list of neighbours: k-reciprocal re-ranking and query expansion."""

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.metrics.arrays import take_arrays
from proxemic.metrics.exact import Distance, all_distances, check_distance


@take_arrays("queries", "gallery")
@torch.no_grad()
def k_reciprocal_distances(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    *,
    k1: int = 20,
    k2: int = 6,
    original_weight: float = 0.3,
    distance: Distance = "cosine",
) -> Float32[Tensor, "queries gallery"]:
    r"""Compute the distances of k-reciprocal re-ranking, which rank a gallery again.

    Two items (queries or gallery items) are k-reciprocal neighbours if each is among the k nearest items of the other.
    R(p) is the set of the k1-reciprocal neighbours of p. It is extended by the (k1/2)-reciprocal neighbours of a member
    q if at least two thirds of these are in R(p). Each item is described by

    $$V_{p,g} = \frac{e^{-d(p,g)}}{\sum_{h \in R(p)} e^{-d(p,h)}} \ \text{for}\ g \in R(p),\ \text{else}\ 0,$$

    and these descriptions are averaged over the k2 nearest items. The distance is

    $$d^*(p,g) = (1 - \lambda)\Big(1 - \frac{\sum_j \min(V_{p,j}, V_{g,j})}{\sum_j \max(V_{p,j}, V_{g,j})}\Big) +
    \lambda\, d(p,g),$$

    where d is the squared Euclidean distance (of unit vectors for ``cosine``), divided by its largest value for p.

    Memory and time grow with the square of the number of queries and gallery items (10,000 items take 1.5 GB). For a
    large gallery, re-rank the first hundred hits of each query.

    Args:
        queries: `[queries, dim]`, finite embeddings.
        gallery: `[gallery, dim]`, finite embeddings to rank.
        k1: Number of neighbours to check for reciprocity, at least 1.
        k2: Number of items to average a description over, at least 1 (the item itself).
        original_weight: λ, from 0 (only the new distance) to 1 (only the original distance).
        distance: The distance that ranked the gallery at first.

    Returns:
        Distances `[queries, gallery]`, at least 0.

    Raises:
        ValueError: If an argument is out of range.

    Source: Zhong, Zheng, Cao and Li, "Re-ranking Person Re-identification with k-reciprocal Encoding" (CVPR 2017),
    equations 3 to 12.

    >>> rows = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> k_reciprocal_distances(rows[:1], rows[1:], k1=2, k2=1).argsort().tolist()
    [[0, 2, 1]]
    """
    check_distance(distance)
    _check_whole("k1", k1)
    _check_whole("k2", k2)
    if not 0 <= original_weight <= 1:
        raise ValueError(f"original_weight is {original_weight!r}, but must be from 0 to 1")
    rows = torch.cat([queries, gallery]).float()
    if distance == "cosine":
        rows = normalize(rows)
    original = all_distances(rows, rows, "euclidean").square_()
    original /= original.max(1, keepdim=True).values.clamp(min=torch.finfo(original.dtype).tiny)
    order = original.argsort(dim=1, stable=True)
    neighbours = _reciprocal(order, k1)
    near = _reciprocal(order, max(1, round(k1 / 2)))
    shared = neighbours.float() @ near.T.float()
    joined = neighbours & (3 * shared >= 2 * near.sum(1))
    expanded = neighbours | (joined.float() @ near.float() > 0)
    described = normalize(torch.exp(-original) * expanded, p=1)
    if k2 > 1:
        described = described[order[:, :k2]].mean(1)
    jaccard = torch.stack([_jaccard(row, described[len(queries) :]) for row in described[: len(queries)]])
    return (1 - original_weight) * jaccard + original_weight * original[: len(queries), len(queries) :]


def _reciprocal(order: Int64[Tensor, "rows rows"], k: int) -> Bool[Tensor, "rows rows"]:
    """Return for all pairs of items whether each is among the k nearest of the other; an item is its own neighbour."""
    near = torch.zeros_like(order, dtype=torch.bool)
    near.scatter_(1, order[:, : k + 1], value=True)
    return (near & near.T).fill_diagonal_(fill_value=True)


def _jaccard(row: Float[Tensor, " rows"], others: Float[Tensor, "gallery rows"]) -> Float[Tensor, " gallery"]:
    # Descriptions sum to 1, so the sum of the maxima is 2 less the sum of the minima.
    shared = torch.minimum(row, others).sum(1)
    return 1 - shared / (2 - shared)


@take_arrays("queries", "gallery")
@torch.no_grad()
def expand_queries(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    *,
    k: int = 10,
    alpha: float = 3.0,
) -> Float32[Tensor, "queries dim"]:
    r"""Replace each query by the weighted mean of itself and its nearest gallery items: α query expansion.

    $$\hat q \propto q + \sum_{g \in N_k(q)} \max(q^\top g, 0)^\alpha\, g$$

    for unit vectors, scaled to unit length. With α = 0 it is average query expansion.

    Args:
        queries: `[queries, dim]`, finite embeddings, compared by their cosine.
        gallery: `[gallery, dim]`, finite embeddings to search, without the queries themselves.
        k: Number of neighbours of each query, from 1 to the number of gallery items.
        alpha: Power of the weights, at least 0.

    Returns:
        The expanded queries `[queries, dim]`, of unit length.

    Raises:
        ValueError: If an argument is out of range.

    Source: Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation" (TPAMI 2018),
    section 3.4.

    >>> expand_queries(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8], [0.0, 1.0]]), k=1, alpha=0)
    tensor([[0.8944, 0.4472]])
    """
    _check_whole("k", k)
    if k > len(gallery):
        raise ValueError(f"k is {k}, but the gallery has {len(gallery)} items")
    if not alpha >= 0:
        raise ValueError(f"alpha is {alpha!r}, but must be 0 or more")
    queries, gallery = normalize(queries.float()), normalize(gallery.float())
    cosines, nearest = (queries @ gallery.T).topk(k)
    weights = cosines.clamp(min=0).pow(alpha)
    return normalize(queries + torch.einsum("qk,qkd->qd", weights, gallery[nearest]))


def _check_whole(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value!r}, but must be a whole number, at least 1")
