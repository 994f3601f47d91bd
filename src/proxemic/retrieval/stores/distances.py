"""Distances of what an engine has found, and the nearest of several findings."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from proxemic.retrieval.stores.store import Neighbours


def exact_distances(
    queries: Float32[np.ndarray, "queries dim"], found: Float32[np.ndarray, "queries k dim"], distance: str
) -> Float32[np.ndarray, "queries k"]:
    """Distances without the rounding of a product of matrices, which matters most where they are small."""
    squares = np.square(found.astype(np.float64) - queries[:, None].astype(np.float64)).sum(2)
    # Of unit vectors, 1 - cos is half of the squared distance.
    return (squares / 2 if distance == "cosine" else np.sqrt(squares)).astype(np.float32)


def merge(found: Sequence[Neighbours], queries: int, k: int) -> Neighbours:
    """Return the nearest of several searches of other rows."""
    nothing = Neighbours(np.full((queries, k), np.inf, np.float32), np.full((queries, k), -1))
    distances, ids = (np.concatenate(parts, axis=1) for parts in zip(nothing, *found, strict=True))
    order = np.lexsort((ids, distances))[:, :k]
    return Neighbours(np.take_along_axis(distances, order, 1), np.take_along_axis(ids, order, 1))
