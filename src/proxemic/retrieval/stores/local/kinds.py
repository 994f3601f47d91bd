"""The kinds of index that Faiss makes for a folder, with their settings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int64

from proxemic.extras import optional_dependency
from proxemic.retrieval.stores.settings import check_settings
from proxemic.retrieval.stores.store import IndexKind

with optional_dependency("retrieval"):
    import faiss

engine: Any = faiss  # whose stubs lack much
Settings = Mapping[str, int]

_LEAST_ROWS = 1000  # there are 256 codes of a byte to learn
_PER_LIST = 64  # rows from which the centre of a list is learnt


@dataclass(frozen=True)
class Kind:
    """A kind of index.

    Args:
        effort: The setting that decides how far a search looks.
        efforts: Its values, from the least that is of use to the most, by the other settings.
        candidates: Rows that are found for each neighbour asked for; several if distances are not exact.
        parameters: Faiss's class of parameters of a search, and its name of the effort.
        make: Makes an index without rows, after learning from some.
        compared: About how many exact comparisons take the time of a search, by settings, rows, k and effort.
    """

    effort: str
    efforts: Callable[[Settings], Sequence[int]]
    candidates: int
    parameters: tuple[str, str]
    make: Callable[[Float32[np.ndarray, "some dim"], Settings], Any]
    compared: Callable[[Settings, int, int, int], int]


def _make_hnsw(some: Float32[np.ndarray, "some dim"], settings: Settings) -> Any:
    index = engine.IndexHNSWFlat(some.shape[1], settings["m"])
    index.hnsw.efConstruction = settings["ef_construction"]
    return index


def _make_ivfpq(some: Float32[np.ndarray, "some dim"], settings: Settings) -> Any:
    dim = some.shape[1]
    index = engine.IndexIVFPQ(engine.IndexFlatL2(dim), dim, settings["lists"], settings["code_bytes"], 8)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # Faiss warns on standard output
    index.cp.niter = 10
    index.cp.max_points_per_centroid = _PER_LIST
    index.train(some)
    return index


KINDS: dict[IndexKind, Kind] = {
    # A graph of neighbours: the fastest search if vectors and graph fit into memory.
    "hnsw": Kind(
        "ef_search",
        lambda _: (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
        1,
        ("SearchParametersHNSW", "efSearch"),
        _make_hnsw,
        lambda settings, _, k, effort: 2 * settings["m"] * max(effort, k),
    ),
    # Lists of compressed vectors: a small index, whose findings are compared again exactly.
    "ivfpq": Kind(
        "probes",
        lambda settings: [2**power for power in range(settings["lists"].bit_length())],
        10,
        ("SearchParametersIVF", "nprobe"),
        _make_ivfpq,
        lambda settings, rows, k, effort: 20 * k + rows * effort // settings["lists"] // 4,
    ),
}


def check(address: str, kind: IndexKind, given: Settings, rows: int, dim: int) -> dict[str, int]:
    """Return all settings of an index; an effort of 0 is to be found."""
    if kind == "ivfpq" and rows < _LEAST_ROWS:
        raise ValueError(f"ivfpq needs {_LEAST_ROWS:,} rows or more, but there are {rows:,}: take exact or hnsw.")
    divisors = [number for number in range(1, dim + 1) if dim % number == 0]
    # A byte for four numbers, or for as few more as divide dim.
    least_bytes = min(number for number in divisors if 4 * number >= dim)
    lists = max(1, min(2 * math.isqrt(rows), rows // 64))
    allowed = {
        "hnsw": {"m": (16, 2, 256), "ef_construction": (100, 1, 10_000), "ef_search": (0, 1, 100_000)},
        "ivfpq": {
            "lists": (lists, 1, rows),
            "code_bytes": (least_bytes, 1, dim),
            "probes": (0, 1, given.get("lists", lists)),
        },
    }
    settings = check_settings(address, kind, given, allowed)
    if settings.get("code_bytes", 1) not in divisors:
        names = ", ".join(map(str, divisors))
        raise ValueError(f"code_bytes is {settings['code_bytes']}, but must divide {dim}: give one of {names}.")
    return settings


@dataclass(frozen=True)
class FaissIndex:
    """An index of Faiss, an `IndexIDMap`, that finds rows by their ids."""

    kind: Kind
    settings: Settings
    index: Any

    def search(
        self, queries: Float32[np.ndarray, "queries dim"], k: int, effort: int, allowed: Bool[np.ndarray, " ids"] | None
    ) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """Find squared distances and ids of the nearest rows, of all or those allowed; ids of -1 if fewer are found."""
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        chosen = {} if bits is None else {"sel": engine.IDSelectorBitmap(bits)}
        parameters, name = self.kind.parameters
        queries = np.ascontiguousarray(queries, np.float32)
        distances, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        # Not by `search`: faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces it by one that
        # takes no parameters.
        arrays = engine.swig_ptr(queries), k, engine.swig_ptr(distances), engine.swig_ptr(ids)
        made = getattr(engine, parameters)(**{name: effort}, **chosen)
        engine.Index.search_c(self.index, len(queries), *arrays, made)
        return distances, ids
