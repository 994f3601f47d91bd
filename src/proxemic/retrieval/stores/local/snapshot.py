"""A state of a gallery's folder, as a reader has it, and the search that compares every row."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency
from proxemic.retrieval.items import Where, check_where
from proxemic.retrieval.stores.distances import exact_distances, merge
from proxemic.retrieval.stores.local.database import State
from proxemic.retrieval.stores.local.segments import Segment
from proxemic.retrieval.stores.store import Neighbours

Masks = Sequence[Bool[np.ndarray, " rows"]]
"""The rows of each segment that are meant."""

BLOCK = 65_536  # rows that are copied at once, where others lie between them
_FEW = 32  # rows more to find than asked for cost less than copying those that may be found
_NUMBERS = 2**22  # that are compared again at once
_WORTH_FAISS = 2**20  # comparisons of rows, which NumPy makes in less time than Faiss takes to be imported


class Snapshot:
    """The files that a state names, opened: it stays whole when a writer replaces the state.

    Args:
        folder: The folder of the gallery.
        state: What the database says.
        before: An older snapshot, whose open files are used again.

    Raises:
        Damaged: If a file is missing, or cannot be what the state says.
    """

    def __init__(self, folder: Path, state: State, before: "Snapshot | None" = None) -> None:
        self.folder = folder
        self.state = state
        self.columns = ("id", *state.columns)
        opened = {(each.entry.vectors, each.entry.items): each for each in before.segments} if before else {}
        self.segments: list[Segment] = []
        for entry in state.segments:
            same = opened.get((entry.vectors, entry.items))
            self.segments.append(same.updated(entry) if same else Segment(folder, entry, state.info.dim))
        self.live: Masks = [segment.live for segment in self.segments]
        self.rows = sum(int(np.count_nonzero(mask)) for mask in self.live)
        self._last: tuple[object, Masks] = ((), self.live)  # the conditions that were asked for last

    def meeting(self, where: Where | None) -> Masks:
        """Return the rows that are not removed and meet all conditions."""
        conditions = check_where(where, self.columns)
        if not conditions:
            return self.live
        last = self._last
        if last[0] != conditions:
            last = self._last = (conditions, [segment.meeting(conditions) for segment in self.segments])
        return last[1]

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, masks: Masks) -> Neighbours:
        """Find the nearest of some rows by comparing the queries with each of them."""
        found = []
        for segment, mask in zip(self.segments, masks, strict=True):
            hidden = len(mask) - int(np.count_nonzero(mask))
            if hidden == 0 or hidden <= _FEW < len(mask):
                distances, places = self._nearest(segment, segment.vectors, queries, k + hidden)
                shown = mask[places]
                ids = np.where(shown, segment.ids[places], -1)
                found.append(Neighbours(np.where(shown, distances, np.float32(np.inf)), ids))
                continue
            meant = np.flatnonzero(mask)
            for first in range(0, len(meant), BLOCK):
                rows = meant[first : first + BLOCK]
                distances, places = self._nearest(segment, segment.vectors[rows], queries, k)
                found.append(Neighbours(distances, segment.ids[rows[places]]))
        return merge(found, len(queries), k)

    def _nearest(
        self, segment: Segment, vectors: np.ndarray, queries: np.ndarray, k: int
    ) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        distances, places = nearest(queries, vectors, k, self.state.info.distance)
        if (places < 0).any():
            # Faiss never finds what is not a number, or is too large to be squared.
            raise segment.not_finite()
        return distances, places

    def live_ids(self) -> Int64[np.ndarray, " live"]:
        """Return the ids of the rows that are not removed, ascending."""
        return np.concatenate([np.empty(0, np.int64), *(each.ids[each.live] for each in self.segments)])

    def vectors_of(self, ids: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return the vectors of rows that the segments have."""
        vectors = np.zeros((len(ids), self.state.info.dim), np.float32)
        for segment in self.segments:
            places, own = segment.places(ids)
            vectors[own] = segment.vectors[places]
        return vectors


def nearest(
    queries: Float32[np.ndarray, "queries dim"], vectors: Float32[np.ndarray, "rows dim"], k: int, distance: str
) -> tuple[Float32[np.ndarray, "queries found"], Int64[np.ndarray, "queries found"]]:
    """Return distances and places of the nearest vectors; places of -1 where their numbers are not finite."""
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
