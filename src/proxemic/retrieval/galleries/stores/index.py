"""Faiss indexes of a gallery's folder: built from all rows, and searched together with newer rows.

An index lies in the user's cache. If it is missing there, every row is compared.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32
from tqdm import tqdm

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_atomically
from proxemic.retrieval.galleries.stores.arrays import Arrays, Mask, distances_at
from proxemic.retrieval.galleries.stores.database import IndexEntry
from proxemic.retrieval.galleries.stores.store import IndexKind, Neighbours, QueryRows, check_settings, merge

with optional_dependency("retrieval"):
    import faiss

_faiss: Any = faiss  # its type stubs are incomplete

EFFORT = {"hnsw": "ef_search", "ivfpq": "probes"}
"""The setting that decides how far a search looks; 0 chooses it by measurement."""

_QUERIES, _K, _RECALL = 500, 10, 0.98  # queries, neighbours and recall of that measurement
_LEARNT_FROM = 262_144  # most rows that Faiss trains on
_AT_ONCE = 8192  # rows handed to Faiss at once
_LEAST_ROWS = 1000  # ivfpq learns 256 codes per byte
_PER_LIST = 64  # most rows that train the centre of a list


def _settle(address: str, kind: IndexKind, given: Mapping[str, int], rows: int, dim: int) -> dict[str, int]:
    """Validate the given settings of an index, and fill in the others."""
    if kind == "ivfpq" and rows < _LEAST_ROWS:
        raise ValueError(f"ivfpq needs {_LEAST_ROWS:,} rows or more, but there are {rows:,}: take exact or hnsw.")
    divisors = [number for number in range(1, dim + 1) if dim % number == 0]
    # One byte for four dimensions, or for a few more so that it divides dim.
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


def _make(kind: IndexKind, some: Float32[np.ndarray, "some dim"], settings: Mapping[str, int]) -> Any:
    """Create an index without rows, trained on some vectors."""
    dim = some.shape[1]
    if kind == "hnsw":  # a graph of neighbours: the fastest search if vectors and graph fit into memory
        index = _faiss.IndexHNSWFlat(dim, settings["m"])
        index.hnsw.efConstruction = settings["ef_construction"]
        return index
    # Lists of compressed vectors: a small index, whose hits are compared again exactly.
    index = _faiss.IndexIVFPQ(_faiss.IndexFlatL2(dim), dim, settings["lists"], settings["code_bytes"], 8)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # Faiss warns on standard output
    index.cp.niter = 10
    index.cp.max_points_per_centroid = _PER_LIST
    index.train(some)
    return index


def build(address: str, arrays: Arrays, kind: IndexKind, given: Mapping[str, int]) -> IndexEntry:
    """Build an index of all rows, measure its recall and write it.

    The queries of the measurement are rows that are not yet in the index, as neighbours of indexed rows are easier to
    find. Unless the effort of a search is given, take the least that finds 98 % of the ten nearest rows.
    """
    ids, dim = arrays.live_ids(), arrays.vectors.shape[1]
    settings = _settle(address, kind, given, len(ids), dim)
    if not len(ids):
        raise UserError(f"{address} has no rows to make an index of: add photos first.")
    rng = np.random.default_rng(0)
    held_out = np.sort(rng.choice(len(ids), min(_QUERIES, len(ids) // 10), replace=False))
    rest, held_out = np.delete(ids, held_out), ids[held_out]
    queries = arrays.vectors_of(held_out)
    learnt_from = np.sort(rng.choice(len(rest), min(_LEARNT_FROM, len(rest)), replace=False))
    made = _faiss.IndexIDMap(_make(kind, arrays.vectors_of(rest[learnt_from]), settings))
    with tqdm(total=len(rest), desc=kind, unit="row", leave=False, disable=None) as bar:
        for first in range(0, len(rest), _AT_ONCE):
            some = rest[first : first + _AT_ONCE]
            made.add_with_ids(arrays.vectors_of(some), some)
            bar.update(len(some))
    effort, recall = EFFORT[kind], None
    right = arrays.search(queries, _K, arrays.mask_of(rest)).ids
    for value in [settings[effort]] if settings[effort] else _efforts(kind, settings):
        settings[effort] = value
        if len(queries):
            found = _found(made, kind, arrays, queries, _K, value, None).ids
            recall = float(((found[:, :, None] == right[:, None]) & (right >= 0)[:, None]).sum() / (right >= 0).sum())
            if recall >= _RECALL:
                break
    made.add_with_ids(queries, held_out)
    entry = IndexEntry(kind, len(ids), int(ids[-1]), settings, recall, f"{secrets.token_hex(16)}.faiss")
    with write_atomically(entry.path) as temporary:
        _faiss.write_index(made, str(temporary))
    return entry


def _efforts(kind: IndexKind, settings: Mapping[str, int]) -> Sequence[int]:
    """Return the efforts to try, ascending."""
    if kind == "hnsw":
        return (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    return [2**power for power in range(settings["lists"].bit_length())]


def load(entry: IndexEntry) -> "FaissIndex":
    """Read an index into memory; `UserError` if this user's cache does not have it."""
    remedy = "every row is compared until proxemic gallery index builds it again."
    if not entry.path.is_file():
        raise UserError(f"{entry.path} is not there: {remedy}")
    try:
        return FaissIndex(_faiss.read_index(str(entry.path)), entry)
    except RuntimeError as error:  # such as a file of a newer Faiss
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{entry.path} cannot be read ({reason}): {remedy}") from error


class FaissIndex:
    """Search a gallery by an index, which may be older than the gallery's state: newer rows are compared one by one."""

    def __init__(self, index: Any, entry: IndexEntry) -> None:
        self.index, self.entry = index, entry
        self._divided: tuple[Arrays | None, Mask | None, Any] = (None, None, None)  # of the last search

    def _divide(self, arrays: Arrays, mask: Mask | None) -> tuple[Bool[np.ndarray, " ids"] | None, int, Mask | None]:
        """Split a mask into a mask of the index's ids (None for all), their number, and a mask of newer rows."""
        last, mask = self.entry.last, np.ones(len(arrays.ids), bool) if mask is None else mask
        allowed, ids = np.zeros(last + 1, bool), arrays.ids[mask]
        allowed[ids[ids <= last]] = True
        newer = mask & (arrays.ids > last)
        count = int(np.count_nonzero(allowed))
        return None if count == self.entry.rows else allowed, count, newer if newer.any() else None

    def search(self, arrays: Arrays, queries: QueryRows, k: int, mask: Mask | None) -> Neighbours:
        """Find the nearest of the masked rows, or of all rows."""
        kind, rows, settings = self.entry.kind, self.entry.rows, self.entry.settings
        divided = self._divided
        if divided[0] is not arrays or divided[1] is not mask:
            divided = self._divided = (arrays, mask, self._divide(arrays, mask))
        allowed, count, newer = divided[2]
        effort = settings[EFFORT[kind]]
        if allowed is not None and count:
            # Only this fraction of the rows that a search meets is allowed.
            effort = min(-(-effort * rows // count), settings.get("lists", rows))
        if _compared(kind, settings, rows, k, effort) >= count:
            return arrays.search(queries, k, mask)
        found = _found(self.index, kind, arrays, queries, k, effort, allowed)
        lacking = found.ids[:, min(k, count) - 1] < 0  # missing hits come last
        if newer is not None:
            found = merge([found, arrays.search(queries, k, newer)], len(queries), k)
        if lacking.any():
            found.distances[lacking], found.ids[lacking] = arrays.search(queries[lacking], k, mask)
        return found


def _compared(kind: IndexKind, settings: Mapping[str, int], rows: int, k: int, effort: int) -> int:
    """Estimate how many exact comparisons take as long as a search of the index."""
    if kind == "hnsw":
        return 2 * settings["m"] * max(effort, k)
    return 20 * k + rows * effort // settings["lists"] // 4


def _found(
    index: Any,
    kind: IndexKind,
    arrays: Arrays,
    queries: QueryRows,
    k: int,
    effort: int,
    allowed: Bool[np.ndarray, " ids"] | None,
) -> Neighbours:
    """Search an index for its own rows, and compute exact distances."""
    bits = None if allowed is None else np.packbits(allowed, bitorder="little")
    options = {} if bits is None else {"sel": _faiss.IDSelectorBitmap(bits)}
    if kind == "hnsw":
        parameters, candidates = _faiss.SearchParametersHNSW(efSearch=effort, **options), k
    else:
        parameters, candidates = _faiss.SearchParametersIVF(nprobe=effort, **options), 10 * k
    queries = np.ascontiguousarray(queries, np.float32)
    candidates = min(candidates, index.ntotal)
    squares, ids = np.empty((len(queries), candidates), np.float32), np.empty((len(queries), candidates), np.int64)
    # faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces `search` by a function without
    # parameters.
    pointers = _faiss.swig_ptr(queries), candidates, _faiss.swig_ptr(squares), _faiss.swig_ptr(ids)
    _faiss.Index.search_c(index, len(queries), *pointers, parameters)
    if kind == "hnsw":
        distances = squares / 2 if arrays.distance == "cosine" else np.sqrt(squares)  # 1 - cos of unit vectors
    else:
        distances = distances_at(queries, arrays.vectors, arrays.places(ids), arrays.distance)
    if (ids < 0).any():
        distances = np.where(ids < 0, np.float32(np.inf), distances)
    # Hits are mostly in order, and sorting takes as long as searching.
    in_order = ids.shape[1] == k and (distances[:, 1:] > distances[:, :-1]).all()
    return Neighbours(distances, ids) if in_order else merge([Neighbours(distances, ids)], len(queries), k)
