"""Exact search in the vectors of a gallery, which lie in memory or are mapped into it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.retrieval.galleries.stores.store import (
    Distance,
    Neighbours,
    QueryRows,
    RowIds,
    VectorRows,
    exact_distances,
    merge,
)

Mask = Bool[np.ndarray, " rows"]

_QUERIES = 256  # queries that are compared at once
_SCORES = 2**20  # scores of a block that are computed at once
_BLOCK = 2**23  # most numbers of a block of vectors
_COPIED = 2**22  # numbers of found vectors that are copied at once
_DENSE = 4  # candidates for each hit from which selecting the best of a block first takes less time


@dataclass(frozen=True)
class Arrays:
    """Ids, ascending, and vectors of rows; `live` hides removed rows, None shows all."""

    distance: Distance
    ids: RowIds
    vectors: VectorRows
    live: Mask | None = None

    @cached_property
    def rows(self) -> int:
        """Number of rows that are not removed."""
        return len(self.ids) if self.live is None else int(np.count_nonzero(self.live))

    def live_ids(self) -> Int64[np.ndarray, " live"]:
        """Return the ids of the rows that are not removed, ascending."""
        return self.ids if self.live is None else self.ids[self.live]

    def places(self, ids: Int64[np.ndarray, "*some"]) -> Int64[np.ndarray, "*some"]:
        """Return the places of rows, also of removed ones; -1 for unknown ids."""
        if not len(self.ids):
            return np.full(ids.shape, -1)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, places, -1)

    def vectors_of(self, ids: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return the vectors of known rows."""
        return self.vectors[self.places(ids)]

    def mask_of(self, ids: Int64[np.ndarray, " some"]) -> Mask:
        """Return a mask of the rows with these ids."""
        mask, places = np.zeros(len(self.ids), bool), self.places(ids)
        mask[places[places >= 0]] = True
        return mask

    @cached_property
    def _half_squares(self) -> Float32[np.ndarray, " rows"] | None:
        if self.distance == "cosine":
            return None
        parts = [
            np.einsum("ij,ij->i", block, block) / np.float32(2)
            for block in np.array_split(self.vectors, 1 + self.vectors.size // _SCORES)
        ]
        return np.concatenate(parts)

    def search(self, queries: QueryRows, k: int, mask: Mask | None) -> Neighbours:
        """Find the nearest of the masked rows, or of all rows, by comparing the queries with each of them."""
        found = [Neighbours(np.empty((0, k), np.float32), np.empty((0, k), np.int64))]
        for first in range(0, len(queries), _QUERIES):
            part = queries[first : first + _QUERIES]
            places = nearest(part, self.vectors, k, self._half_squares, mask)
            distances = distances_at(part, self.vectors, places, self.distance)
            distances[places < 0] = np.inf
            ids = np.where(places < 0, -1, self.ids[places]) if len(self.ids) else places
            found.append(merge([Neighbours(distances, ids)], len(part), k))
        return Neighbours(*map(np.concatenate, zip(*found, strict=True)))


def nearest(
    queries: QueryRows,
    vectors: VectorRows,
    k: int,
    half_squares: Float32[np.ndarray, " rows"] | None = None,
    mask: Mask | None = None,
) -> Int64[np.ndarray, "queries found"]:
    """Return the places of the nearest vectors in any order, -1 if there are fewer.

    Without `half_squares`, halves of the vectors' squared lengths, all vectors have the same length. The vectors are
    compared block by block. A block contributes only what is nearer than the k-th hit before it, so that almost all
    time goes into the matrix products.

    >>> nearest(np.eye(2, dtype=np.float32), np.float32([[0.8, 0.6], [0, 1], [1, 0]]), 1).tolist()
    [[2], [1]]
    """
    k, rows = min(k, len(vectors)), np.arange(len(queries))
    best, places = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1)
    step = max(256, min(_SCORES // max(len(queries), 1), _BLOCK // vectors.shape[1]))
    for first in range(0, len(vectors) if best.size else 0, step):
        block, numbers, hidden = vectors[first : first + step], None, None
        if mask is not None and not (shown := mask[first : first + step]).all():
            hidden = ~shown
            if 2 * np.count_nonzero(shown) < len(shown):  # copying few rows takes less time than comparing all
                numbers, hidden = np.flatnonzero(shown), None
                block = block[numbers]
        if not len(block):
            continue
        scores = queries @ block.T
        if half_squares is not None:
            scores -= half_squares[first : first + step] if numbers is None else half_squares[first + numbers]
        if hidden is not None:
            scores[:, hidden] = -np.inf
        nearer = scores > best[:, -1:]
        if not (count := np.count_nonzero(nearer)):
            continue
        if count > _DENSE * best.size and k < scores.shape[1]:
            scores[np.isnan(scores)] = -np.inf  # of damaged vectors, which come last
            own, columns = np.repeat(rows, k), np.argpartition(scores, -k)[:, -k:].ravel()
        else:
            own, columns = np.nonzero(nearer)
        values = np.concatenate([best.ravel(), scores[own, columns]])
        at = np.concatenate([places.ravel(), first + (columns if numbers is None else numbers[columns])])
        own = np.concatenate([np.repeat(rows, k), own])
        order = np.lexsort((at, -values, own))
        chosen = order[np.searchsorted(own[order], rows)[:, None] + np.arange(k)]
        best, places = values[chosen], at[chosen]
    return np.where(best > -np.inf, places, -1)


def distances_at(
    queries: QueryRows, vectors: VectorRows, places: Int64[np.ndarray, "queries found"], distance: Distance
) -> Float32[np.ndarray, "queries found"]:
    """Compute exact distances to the vectors at the given places, for few queries at once to save memory."""
    step = max(1, _COPIED // max(places.shape[1] * queries.shape[1], 1))
    parts = [
        exact_distances(queries[first : first + step], vectors[places[first : first + step]], distance)
        for first in range(0, len(queries) if len(vectors) else 0, step)
    ]
    return np.concatenate(parts) if parts else np.empty(places.shape, np.float32)
