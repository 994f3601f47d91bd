"""The kinds of index that Faiss makes for a folder, with their settings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency

with optional_dependency("retrieval"):
    import faiss

engine: Any = faiss  # whose stubs lack much

_LEAST_ROWS = 1000  # there are 256 codes of a byte to learn
_PER_LIST = 64  # rows from which the centre of a list is learnt


class FaissIndex:
    """An index of Faiss that finds rows by their ids.

    Args:
        index: An `IndexIDMap`.
        settings: Of the index and of its searches.

    Attributes:
        names: Of all settings.
        effort: The setting that decides how far a search looks.
        candidates: Rows that are found for each neighbour asked for.
        is_exact: Whether their distances are exact.
    """

    names: ClassVar[tuple[str, ...]]
    effort: ClassVar[str]
    candidates: ClassVar[int]
    is_exact: ClassVar[bool]
    _parameters: ClassVar[tuple[str, str]]  # Faiss's class of them, and its name of the effort

    def __init__(self, index: Any, settings: Mapping[str, int]) -> None:
        self.index = index
        self.settings = settings

    def search(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, effort: int, allowed: Bool[np.ndarray, " ids"] | None
    ) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """Find squared distances and ids of the nearest rows, of all or those allowed; ids of -1 if fewer are found."""
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        chosen = {} if bits is None else {"sel": engine.IDSelectorBitmap(bits)}
        made, name = self._parameters
        queries = np.ascontiguousarray(queries, np.float32)
        distances, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        # Not by `search`: faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces it by one that
        # takes no parameters.
        arrays = engine.swig_ptr(queries), k, engine.swig_ptr(distances), engine.swig_ptr(ids)
        engine.Index.search_c(self.index, len(queries), *arrays, getattr(engine, made)(**{name: effort}, **chosen))
        return distances, ids


class HnswIndex(FaissIndex):
    """A graph of neighbours: the fastest search if vectors and graph fit into memory.

    `m` are the links of a vector (twice that in the lowest layer), `ef_construction` the candidates for them, and
    `ef_search` the candidates of a query.
    """

    names = ("m", "ef_construction", "ef_search")
    effort = "ef_search"
    candidates, is_exact = 1, True
    _parameters = "SearchParametersHNSW", "efSearch"

    @staticmethod
    def check(settings: Mapping[str, int], _rows: int, _dim: int) -> dict[str, int]:
        """Return all settings, but the effort only if it is given; `ValueError` if one is out of range."""
        chosen = {"m": 16, "ef_construction": 100, **settings}
        for name, least, most in (("m", 2, 256), ("ef_construction", 1, 10_000), ("ef_search", 1, 100_000)):
            if name in chosen and not least <= chosen[name] <= most:
                raise ValueError(f"{name} is {chosen[name]}, but must be from {least} to {most:,}.")
        return chosen

    @classmethod
    def new(cls, some: Float32[np.ndarray, "some dim"], settings: Mapping[str, int]) -> Self:
        """Make an index without rows."""
        index = engine.IndexHNSWFlat(some.shape[1], settings["m"])
        index.hnsw.efConstruction = settings["ef_construction"]
        return cls(engine.IndexIDMap(index), settings)

    def efforts(self) -> Sequence[int]:
        """Return efforts to try, from the least that is of use to the most."""
        return (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

    def most_effort(self) -> int:
        """Return the effort from which on more is of no use."""
        return self.index.ntotal

    def compared(self, k: int, effort: int) -> int:
        """Return about how many exact comparisons take the time of a search."""
        return 2 * self.settings["m"] * max(effort, k)


class IvfPqIndex(FaissIndex):
    """Lists of compressed vectors: a small index, whose findings are compared again exactly.

    Rows are sorted into `lists`, `code_bytes` is the length of a compressed vector, and a query is looked for in
    `probes` lists.
    """

    names = ("lists", "code_bytes", "probes")
    effort = "probes"
    candidates, is_exact = 10, False
    _parameters = "SearchParametersIVF", "nprobe"

    @staticmethod
    def check(settings: Mapping[str, int], rows: int, dim: int) -> dict[str, int]:
        """As for `HnswIndex`."""
        if rows < _LEAST_ROWS:
            raise ValueError(f"ivfpq needs {_LEAST_ROWS:,} rows or more, but there are {rows:,}: take exact or hnsw.")
        divisors = [number for number in range(1, dim + 1) if dim % number == 0]
        # A byte for four numbers, or for as few more as divide dim.
        least_bytes = min(number for number in divisors if 4 * number >= dim)
        chosen = {"lists": max(1, min(2 * math.isqrt(rows), rows // 64)), "code_bytes": least_bytes, **settings}
        for name, most in (("lists", rows), ("probes", chosen["lists"])):
            if name in chosen and not 1 <= chosen[name] <= most:
                raise ValueError(f"{name} is {chosen[name]}, but must be from 1 to {most:,}.")
        if chosen["code_bytes"] not in divisors:
            allowed = ", ".join(map(str, divisors))
            raise ValueError(f"code_bytes is {chosen['code_bytes']}, but must divide {dim}: give one of {allowed}.")
        return chosen

    @classmethod
    def new(cls, some: Float32[np.ndarray, "some dim"], settings: Mapping[str, int]) -> Self:
        """Make an index without rows, after learning from some."""
        dim = some.shape[1]
        index = engine.IndexIVFPQ(engine.IndexFlatL2(dim), dim, settings["lists"], settings["code_bytes"], 8)
        index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # Faiss warns on standard output
        index.cp.niter = 10
        index.cp.max_points_per_centroid = _PER_LIST
        index.train(some)
        return cls(engine.IndexIDMap(index), settings)

    def efforts(self) -> Sequence[int]:
        """As for `HnswIndex`."""
        return [2**power for power in range(self.settings["lists"].bit_length())]

    def most_effort(self) -> int:
        """As for `HnswIndex`."""
        return self.settings["lists"]

    def compared(self, k: int, effort: int) -> int:
        """As for `HnswIndex`."""
        return 20 * k + self.index.ntotal * effort // self.settings["lists"] // 4


KINDS: Mapping[str, type[HnswIndex] | type[IvfPqIndex]] = {"hnsw": HnswIndex, "ivfpq": IvfPqIndex}
