"""Exact nearest neighbours, independent of the order of the items, chunks and device.

A float32 product lists a few more neighbours than needed, whose distances are then computed exactly
(`proxemic.metrics.exact`). If rounding may have kept a nearer item off the list, the whole gallery is compared exactly.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped
from torch import Tensor

from proxemic.metrics.arrays import as_integers, take_arrays
from proxemic.metrics.exact import Distance, check_distance, comparable_rows, distance_block, row_distances
from proxemic.metrics.shortlist import Shortlist, ShortlistSearch, largest

EXACT_ROWS, EXACT_COLUMNS = 512, 4096  # of a float64 tile: 16 MB


@take_arrays("queries", "gallery", "exclude", "query_sequences", "gallery_sequences")
@torch.no_grad()
def nearest_neighbours(
    queries: Float[Tensor, "queries ..."],
    gallery: Float[Tensor, "gallery ..."],
    *,
    k: int,
    distance: Distance = "cosine",
    exclude: Shaped[Tensor, "..."] | None = None,
    query_sequences: Shaped[Tensor, "..."] | None = None,
    gallery_sequences: Shaped[Tensor, "..."] | None = None,
    chunk_size: int | None = None,
) -> tuple[Float32[Tensor, "queries k"], Int64[Tensor, "queries k"]]:
    r"""Find the k gallery items nearest to each query, nearest first.

    The cosine distance is $1 - \cos$, in [0, 2], and 1 to or from a zero vector. Among items at the same distance, the
    smaller index comes first. Each embedding is rounded to 20 to 24 bits below its largest coordinate (fewer with more
    dimensions); smaller differences are ties. For Euclidean distances, nearly the gallery's mean is subtracted first,
    so that distances far from the origin are as exact.

    Memory: the results, a float32 copy of the gallery, 64 MB of scores and about 100 bytes times k for each query of a
    chunk.

    Args:
        queries: `[queries, dim]`, finite embeddings.
        gallery: `[gallery, dim]`, finite embeddings to search.
        k: Number of neighbours, from 1 to the number of gallery items, less one if `exclude` is given.
        distance: ``"cosine"`` or ``"euclidean"``.
        exclude: `[queries]`, index of the gallery item that is the query itself, or -1 for none.
        query_sequences: `[queries]`, number of the query's sequence (a burst, a video), below 0 for none. Gallery items
            of the same sequence are ignored; if fewer than k items remain, infinite distances and indices of -1 follow.
        gallery_sequences: `[gallery]`, number of each item's sequence.
        chunk_size: Number of queries compared with the gallery at once; None is 1,024. It does not change the result.

    Returns:
        Distances `[queries, k]` and indices `[queries, k]`.

    Raises:
        ValueError: If an argument is out of range, or embeddings are NaN or infinite.

    >>> points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    >>> nearest_neighbours(points, points, k=2, distance="euclidean", exclude=torch.arange(3))
    (tensor([[1.0000, 5.0000],
            [4.4721, 5.0000],
            [1.0000, 4.4721]]), tensor([[2, 1],
            [2, 0],
            [0, 1]]))
    """
    limit = len(gallery) - (exclude is not None)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= limit:
        raise ValueError(f"k is {k!r} but must be a whole number from 1 to {limit}, the gallery items of a query")
    if len(queries) == 0:
        distances = torch.empty(0, k, dtype=torch.float32, device=queries.device)
        return distances, torch.empty_like(distances, dtype=torch.int64)
    search = NeighbourSearch(queries, gallery, distance, exclude, query_sequences, gallery_sequences)
    keys = search.nearest_keys(k, chunk_size)
    distances, indices = distances_of(keys), indices_of(keys)
    if search.sequences is not None:
        indices[distances.isinf()] = -1
    return distances.to(queries.device), indices.to(queries.device)


class NeighbourSearch:
    """Search of a gallery by float32 shortlists and by exact distances; the arguments are as in `nearest_neighbours`.

    Pass the same tensor as `queries` and `gallery` if the queries search themselves. `labels` are those of the queries
    and of the gallery; with labels, irrelevant items come first among items at the same distance.
    """

    def __init__(
        self,
        queries: Float[Tensor, "queries ..."],
        gallery: Float[Tensor, "gallery ..."],
        distance: Distance,
        exclude: Shaped[Tensor, "..."] | None,
        query_sequences: Shaped[Tensor, "..."] | None = None,
        gallery_sequences: Shaped[Tensor, "..."] | None = None,
        labels: tuple[Int64[Tensor, "queries"], Int64[Tensor, "gallery"]] | None = None,
    ) -> None:
        check_distance(distance)
        if queries.ndim == gallery.ndim == 2 and queries.shape[1] != gallery.shape[1]:
            raise ValueError(
                f"gallery has {gallery.shape[1]} dimensions but queries {queries.shape[1]}; they must agree"
            )
        self.queries, self.gallery = comparable_rows(queries, gallery, distance)
        self.distance: Distance = distance
        self.device = self.gallery.rows.device
        if exclude is not None:
            exclude = as_integers("exclude", exclude, len(queries), "query").to(self.device)
            if bool(((exclude < -1) | (exclude >= len(gallery))).any()):
                raise ValueError(f"exclude holds an index outside -1 to {len(gallery) - 1}, the indices of the gallery")
        self.exclude = exclude
        self.labels = None if labels is None else (labels[0].to(self.device), labels[1].to(self.device))
        self.sequences = None
        if query_sequences is not None and gallery_sequences is not None:
            ours = as_integers("query_sequences", query_sequences, len(queries)).to(self.device)
            theirs = as_integers("gallery_sequences", gallery_sequences, len(gallery)).to(self.device)
            # Items without a sequence share none with the other side.
            self.sequences = ours.where(ours >= 0, -2), theirs.clamp(min=-1)
        elif query_sequences is not None or gallery_sequences is not None:
            raise ValueError("query_sequences and gallery_sequences go together; pass both, with -1 for no sequence")
        self.near = ShortlistSearch(self.queries, self.gallery, distance)

    def chunks(self, rows: Int64[Tensor, "queries"], chunk_size: int | None) -> tuple[Int64[Tensor, "chunk"], ...]:
        """Split queries into chunks that are searched at once."""
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size} but must be at least 1, or None to have it chosen")
        return rows.split(chunk_size or 1024)

    def shortlist(self, rows: Int64[Tensor, "queries"], k: int) -> Shortlist:
        """List the k nearest gallery items and a few more, as rounding may have changed their order."""
        itself = None if self.exclude is None else self.exclude[rows]
        sequences = None if self.sequences is None else (self.sequences[0][rows], self.sequences[1])
        return self.near.nearest(rows, min(len(self.gallery), k + max(8, k // 16)), itself, sequences)

    def distances(self, rows: Int64[Tensor, "pairs"], gallery_rows: Int64[Tensor, "pairs"]) -> Float32[Tensor, "pairs"]:
        """Compute the exact distances of queries to gallery items."""
        return row_distances(self.queries, self.gallery, rows, gallery_rows, self.distance).float()

    def relevant(
        self, rows: Int64[Tensor, "queries"], where: slice | Int64[Tensor, "queries ranks"]
    ) -> Bool[Tensor, "queries ranks"]:
        """Return whether gallery items have the query's label."""
        assert self.labels is not None
        return self.labels[0][rows, None] == self.labels[1][where]

    def nearest_keys(self, k: int, chunk_size: int | None) -> Int64[Tensor, "queries k"]:
        """Find the k smallest keys of every query, ascending."""
        keys = torch.empty(len(self.queries), k, dtype=torch.int64, device=self.device)
        left = []
        for rows in self.chunks(torch.arange(len(keys), device=self.device), chunk_size):
            listed = self.shortlist(rows, k)
            near = listed.values.isfinite()  # not the query itself or an item of its sequence
            pairs = torch.full_like(listed.values, torch.inf, dtype=torch.float32)
            pairs[near] = self.distances(rows[:, None].expand_as(near)[near], listed.indices[near])
            relevant = None if self.labels is None else self.relevant(rows, listed.indices) & near
            keys[rows] = _keys(pairs, listed.indices, relevant).sort(1).values[:, :k]
            left.append(rows[~listed.certain(k, len(self.gallery))])
        for rows in torch.cat(left).split(EXACT_ROWS):
            keys[rows] = self.compare_with_all(rows, k)
        return keys

    def compare_with_all(self, rows: Int64[Tensor, "queries"], k: int) -> Int64[Tensor, "queries k"]:
        """Find the k smallest keys of up to `EXACT_ROWS` queries by exact comparison with the whole gallery."""
        best = torch.empty(len(rows), 0, dtype=torch.int64, device=self.device)
        for part, distances in self.exact_tiles(rows):
            indices = torch.arange(part.start, part.stop, device=self.device)
            relevant = None if self.labels is None else self.relevant(rows, part) & distances.isfinite()
            best = torch.cat([best, largest(_keys(distances, indices, relevant).neg_(), k)[0].neg_()], 1)
            best = best if best.shape[1] <= k else best.topk(k, largest=False, sorted=False).values
        return best.sort(1).values

    def exact_tiles(self, rows: Int64[Tensor, "queries"]) -> Iterator[tuple[slice, Float32[Tensor, "queries columns"]]]:
        """Yield parts of the gallery and exact distances to them, infinite for the query itself and its sequence."""
        self.near.free()
        for start in range(0, len(self.gallery), EXACT_COLUMNS):
            part = slice(start, min(start + EXACT_COLUMNS, len(self.gallery)))
            distances = distance_block(self.queries, self.gallery, rows, part, self.distance).float()
            if self.exclude is not None:
                columns = torch.arange(part.start, part.stop, device=self.device)
                distances.masked_fill_(self.exclude[rows, None] == columns, torch.inf)
            if self.sequences is not None:
                distances.masked_fill_(self.sequences[0][rows, None] == self.sequences[1][part], torch.inf)
            yield part, distances


# Keys sort by distance, then irrelevant items first, then by index: the bits of floats >= 0 sort as the floats do.
_RELEVANT, _INDEX = 2**31, 2**31 - 1


def _keys(
    distances: Float32[Tensor, "queries ranks"],
    indices: Int64[Tensor, "*#queries ranks"],
    relevant: Bool[Tensor, "queries ranks"] | None = None,
) -> Int64[Tensor, "queries ranks"]:
    keys = distances.view(torch.int32).long().bitwise_left_shift_(32).bitwise_or_(indices)
    return keys if relevant is None else keys.add_(relevant, alpha=_RELEVANT)


def indices_of(keys: Int64[Tensor, "queries ranks"]) -> Int64[Tensor, "queries ranks"]:
    """Return the gallery index of each key."""
    return keys & _INDEX


def distances_of(keys: Int64[Tensor, "queries ranks"]) -> Float32[Tensor, "queries ranks"]:
    """Return the distance of each key."""
    return (keys >> 32).int().view(torch.float32)


def relevance_of(keys: Int64[Tensor, "queries ranks"]) -> Bool[Tensor, "queries ranks"]:
    """Return whether the item of each key is relevant, for a search with labels."""
    return (keys & _RELEVANT) != 0
