"""Search that compares a query with every row."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency
from proxemic.retrieval.stores.distances import exact_distances, merge
from proxemic.retrieval.stores.local.segments import Segment
from proxemic.retrieval.stores.store import Neighbours

BLOCK = 65_536  # rows that are copied at once, where others lie between them
_FEW = 32  # rows more to find than asked for cost less than copying those that may be found
_NUMBERS = 2**22  # that are compared again at once
_WORTH_FAISS = 2**20  # comparisons of rows, which NumPy makes in less time than Faiss takes to be imported


def search_segments(
    segments: Sequence[Segment],
    masks: Sequence[Bool[np.ndarray, " rows"] | None],
    queries: Float32[np.ndarray, "queries dim"],
    k: int,
    distance: str,
) -> Neighbours:
    """Find the nearest of the rows that a mask allows, or of all."""
    found = [
        part
        for segment, mask in zip(segments, masks, strict=True)
        for part in _search_segment(segment, mask, queries, k, distance)
    ]
    return merge(found, len(queries), k)


def _search_segment(
    segment: Segment, mask: Bool[np.ndarray, " rows"] | None, queries: np.ndarray, k: int, distance: str
) -> list[Neighbours]:
    hidden = 0 if mask is None else len(mask) - int(np.count_nonzero(mask))
    if mask is None or hidden <= _FEW < len(mask):
        distances, places = nearest(queries, segment.vectors, k + hidden, distance)
        if (places < 0).any():
            # Faiss never finds what is not a number, or is too large to be squared.
            raise segment.not_finite()
        ids = segment.ids[places]
        if mask is not None:
            distances, ids = np.where(mask[places], distances, np.inf), np.where(mask[places], ids, -1)
        return [Neighbours(distances, ids)]
    allowed = np.flatnonzero(mask)
    found = []
    for first in range(0, len(allowed), BLOCK):
        rows = allowed[first : first + BLOCK]
        distances, places = nearest(queries, segment.vectors[rows], k, distance)
        if (places < 0).any():
            raise segment.not_finite()
        found.append(Neighbours(distances, segment.ids[rows[places]]))
    return found


def nearest(
    queries: Float32[np.ndarray, "queries dim"], vectors: Float32[np.ndarray, "rows dim"], k: int, distance: str
) -> tuple[Float32[np.ndarray, "queries found"], Int64[np.ndarray, "queries found"]]:
    """Distances and places of the nearest of all vectors; places of -1 where their numbers are not finite."""
    k = min(k, len(vectors))
    if distance == "cosine" and len(queries) * len(vectors) <= _WORTH_FAISS:
        near = queries @ vectors.T
        places = np.argpartition(-near, k - 1)[:, :k] if k else np.empty((len(queries), 0), np.int64)
        places = np.where(np.isfinite(np.take_along_axis(near, places, 1)), places, -1)
    else:
        with optional_dependency("retrieval"):
            import faiss
        kind = faiss.METRIC_INNER_PRODUCT if distance == "cosine" else faiss.METRIC_L2
        _, places = faiss.knn(queries, vectors, k, metric=kind)
    return distances_at(queries, vectors.__getitem__, places, distance), places


def distances_at(
    queries: Float32[np.ndarray, "queries dim"],
    vectors_at: Callable[[np.ndarray], np.ndarray],
    places: Int64[np.ndarray, "queries found"],
    distance: str,
) -> Float32[np.ndarray, "queries found"]:
    """Return exact distances to the rows at some places, for a few queries at once, as all may not fit into memory."""
    step = max(1, _NUMBERS // max(places.shape[1] * queries.shape[1], 1))
    parts = [
        exact_distances(queries[first : first + step], vectors_at(places[first : first + step]), distance)
        for first in range(0, len(queries), step)
    ]
    return np.concatenate([np.empty((0, places.shape[1]), np.float32), *parts])
