"""A graph of neighbours, by Faiss: the fastest search where vectors and graph fit into memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency
from proxemic.retrieval.stores.local.engine import search_index

with optional_dependency("retrieval"):
    import faiss

Fetch = Callable[[Int64[np.ndarray, " some"]], Float32[np.ndarray, "some dim"]]
"""The vectors of rows at some places of an index."""

AT_ONCE = 8192  # rows that are handed to Faiss


class HnswIndex:
    """Faiss's `IndexHNSWFlat`, which is built, taken apart into arrays and put together again.

    Args:
        index: It, with its vectors.
        settings: `m`, the links of a vector (twice that in the lowest layer), `ef_construction`, the candidates for
            them, and `ef_search`, the candidates of a query.
    """

    names = ("m", "ef_construction", "ef_search")
    effort = "ef_search"
    candidates, is_exact = 1, True  # to each neighbour asked for, and whether their distances are exact

    def __init__(self, index: faiss.IndexHNSWFlat, settings: Mapping[str, int]) -> None:
        self.index = index
        self.settings = settings

    @staticmethod
    def check(settings: Mapping[str, int], _rows: int, _dim: int) -> dict[str, int]:
        """All settings but the effort of a search, unless that is given; `ValueError` where one is out of range."""
        chosen = {"m": 16, "ef_construction": 100, **settings}
        for name, least, most in (("m", 2, 256), ("ef_construction", 1, 10_000), ("ef_search", 1, 100_000)):
            if name in chosen and not least <= chosen[name] <= most:
                raise ValueError(f"{name} is {chosen[name]}, but must be from {least} to {most:,}.")
        return chosen

    @classmethod
    def new(cls, some: Float32[np.ndarray, "some dim"], settings: Mapping[str, int]) -> Self:
        """An index that is to get rows."""
        index = faiss.IndexHNSWFlat(some.shape[1], settings["m"])
        index.hnsw.efConstruction = settings["ef_construction"]
        return cls(index, settings)

    def add(self, vectors: Float32[np.ndarray, "rows dim"]) -> None:
        self.index.add(vectors)

    def arrays(self) -> dict[str, np.ndarray]:
        """All but the vectors."""
        graph: Any = self.index.hnsw
        return {
            "levels": faiss.vector_to_array(graph.levels),
            "neighbors": faiss.vector_to_array(graph.neighbors),
            "entry_point": np.array([graph.entry_point], np.int32),
        }

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, np.ndarray],
        settings: Mapping[str, int],
        there: Bool[np.ndarray, " rows"],
        fetch: Fetch,
        dim: int,
    ) -> Self:
        """Put it together; `ValueError` where arrays would lead Faiss out of its memory."""
        cls.check(settings, len(there), dim)
        index = faiss.IndexHNSWFlat(dim, settings["m"])
        graph: Any = index.hnsw
        levels, neighbors, entry = (arrays[name] for name in ("levels", "neighbors", "entry_point"))
        if {levels.dtype, neighbors.dtype, entry.dtype} != {np.dtype("<i4")} or entry.shape != (1,):
            raise ValueError("its graph is of another type")
        ends = faiss.vector_to_array(graph.cum_nneighbor_per_level).astype(np.int64)
        starts = _check_graph(levels, neighbors, int(entry[0]), ends, len(there))
        places = _stand_ins(there, neighbors, starts, int(ends[1]))
        for first in range(0, len(places), AT_ONCE):
            index.storage.add(fetch(places[first : first + AT_ONCE]))
        index.ntotal = len(places)
        faiss.copy_array_to_vector(np.ascontiguousarray(levels), graph.levels)
        faiss.copy_array_to_vector(np.ascontiguousarray(neighbors), graph.neighbors)
        faiss.copy_array_to_vector(starts.astype(np.uint64), graph.offsets)
        graph.entry_point, graph.max_level = int(entry[0]), int(levels.max()) - 1
        return cls(index, settings)

    def efforts(self) -> Sequence[int]:
        """Of a search, from the least that is of use to the most."""
        return (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

    @property
    def most_effort(self) -> int:
        """From where on more is of no use."""
        return self.index.ntotal

    def compared(self, k: int, effort: int) -> int:
        """About as many vectors as a query is compared with."""
        return 2 * self.settings["m"] * max(effort, k)

    def search(
        self,
        queries: Float32[np.ndarray, "queries dim"],
        k: int,
        effort: int,
        allowed: Bool[np.ndarray, " rows"] | None,
    ) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """Squared distances and places, of -1 where fewer are found."""
        return search_index(self.index, queries, k, allowed, "SearchParametersHNSW", efSearch=max(effort, k))


def _check_graph(
    levels: np.ndarray, neighbors: np.ndarray, entry: int, ends: np.ndarray, rows: int
) -> Int64[np.ndarray, " rows+1"]:
    """Where the neighbours of each row begin; those of the next layer come after those of the one below."""
    if levels.shape != (rows,) or not 1 <= levels.min() <= levels.max() < len(ends):
        raise ValueError("its layers are out of range")
    starts = np.concatenate([[0], np.cumsum(ends[levels])])
    if neighbors.shape != (starts[-1],) or not -1 <= neighbors.min() <= neighbors.max() < rows:
        raise ValueError("its neighbours are out of range")
    if not 0 <= entry < rows or levels[entry] != levels.max():
        raise ValueError("its entry is out of range")
    # In upper layers, a neighbour must be in that layer itself.
    for level in range(1, int(levels.max())):
        above = np.flatnonzero(levels > level)
        linked = neighbors[starts[above][:, None] + np.arange(ends[level], ends[level + 1])]
        if (levels[linked[linked >= 0]] <= level).any():
            raise ValueError("its layers have neighbours that are not in them")
    return starts


def _stand_ins(
    there: Bool[np.ndarray, " rows"], neighbors: np.ndarray, starts: np.ndarray, width: int
) -> Int64[np.ndarray, " rows"]:
    """The place whose vector each node of the graph has: its own or, where that is gone, a neighbour's.

    Rows that were removed are never found, but the ways to others lead over them.
    """
    places = np.arange(len(there))
    missing = np.flatnonzero(~there)
    linked = neighbors[starts[missing][:, None] + np.arange(width)]
    usable = (linked >= 0) & there[linked]
    found = linked[np.arange(len(missing)), usable.argmax(1)]
    places[missing] = np.where(usable.any(1), found, np.argmax(there))
    return places
