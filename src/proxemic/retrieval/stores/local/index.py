"""Faiss indexes of a gallery's folder: built from all rows, sealed, and searched together with newer rows.

A hostile index file makes Faiss access foreign memory. Therefore only indexes that this user has built are read: their
seal is an HMAC by a key in the user's configuration folder.
"""

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from jaxtyping import Bool, Float32
from tqdm import tqdm

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_atomically, write_errors
from proxemic.locks import lock_in_turn
from proxemic.retrieval.stores.local.database import Damaged, IndexEntry, State
from proxemic.retrieval.stores.local.segments import Masks, Snapshot, check_file, distances_at, nearest, write_file
from proxemic.retrieval.stores.store import IndexKind, Neighbours, QueryRows, check_settings, merge

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


def key_file() -> Path:
    """Return the path of this user's key, which seals indexes."""
    return platformdirs.user_config_path("proxemic") / "index.key"


def _key() -> bytes:
    """Read this user's key; create it if there is none."""
    path = key_file()
    with write_errors(path), lock_in_turn(path):
        if not path.exists():
            with write_atomically(path) as temporary:
                temporary.chmod(0o600)
                temporary.write_bytes(secrets.token_bytes(32))
        return path.read_bytes()


def _seal(key: bytes, state: State, entry: IndexEntry) -> str:
    """Return the HMAC of an index entry, with the checksum of its file, and of the gallery's settings."""
    content = {"token": state.token, "info": state.info.to_json(), **asdict(replace(entry, seal=""))}
    return hmac.digest(key, json.dumps(content, sort_keys=True).encode(), "sha256").hex()


def _settle(address: str, kind: IndexKind, given: Mapping[str, int], rows: int, dim: int) -> dict[str, int]:
    """Validate the given settings of an index, and fill in the others."""
    if kind == "ivfpq" and rows < _LEAST_ROWS:
        raise ValueError(f"ivfpq needs {_LEAST_ROWS:,} rows or more, but there are {rows:,}: take exact or hnsw.")
    divisors = [number for number in range(1, dim + 1) if dim % number == 0]
    # One byte for four numbers, or for a few more so that it divides dim.
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


def build(snapshot: Snapshot, kind: IndexKind, given: Mapping[str, int]) -> IndexEntry:
    """Build an index of all rows, measure its recall and write it.

    The queries of the measurement are rows that are not yet in the index, as neighbours of indexed rows are easier to
    find. Unless the effort of a search is given, take the least that finds 98 % of the ten nearest rows.
    """
    info, ids = snapshot.state.info, snapshot.live_ids()
    settings = _settle(str(snapshot.folder), kind, given, len(ids), info.dim)
    if not len(ids):
        raise UserError(f"{snapshot.folder} has no rows to make an index of: add pictures first.")
    key = _key()
    rng = np.random.default_rng(0)
    held_out = np.sort(rng.choice(len(ids), min(_QUERIES, len(ids) // 10), replace=False))
    rest, held_out = np.delete(ids, held_out), ids[held_out]
    queries = snapshot.vectors_of(held_out)
    learnt_from = np.sort(rng.choice(len(rest), min(_LEARNT_FROM, len(rest)), replace=False))
    made = _faiss.IndexIDMap(_make(kind, snapshot.vectors_of(rest[learnt_from]), settings))
    right = merge([], len(queries), _K)
    with tqdm(total=len(rest), desc=kind, unit="row", leave=False, disable=None) as bar:
        for first in range(0, len(rest), _AT_ONCE):
            some = rest[first : first + _AT_ONCE]
            vectors = snapshot.vectors_of(some)
            made.add_with_ids(vectors, some)
            distances, places = nearest(queries, vectors, _K, info.distance)
            right = merge([right, Neighbours(distances, some[places])], len(queries), _K)
            bar.update(len(some))
    effort, recall = EFFORT[kind], None
    for value in [settings[effort]] if settings[effort] else _efforts(kind, settings):
        settings[effort] = value
        if len(queries):
            found = _found(made, kind, snapshot, queries, _K, value, None).ids
            recall = float(((found[:, :, None] == right.ids[:, None]) & (right.ids >= 0)[:, None]).sum())
            recall /= float((right.ids >= 0).sum())
            if recall >= _RECALL:
                break
    made.add_with_ids(queries, held_out)
    content = _faiss.serialize_index(made)
    file = write_file(snapshot.folder, snapshot.state.new_name("index"), lambda opened: opened.write(content))
    entry = IndexEntry(kind, len(ids), int(ids[-1]), settings, recall, file, "")
    return replace(entry, seal=_seal(key, snapshot.state, entry))


def _efforts(kind: IndexKind, settings: Mapping[str, int]) -> Sequence[int]:
    """Return the efforts to try, ascending."""
    if kind == "hnsw":
        return (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    return [2**power for power in range(settings["lists"].bit_length())]


def load(snapshot: Snapshot, entry: IndexEntry) -> "FaissIndex":
    """Read an index into memory.

    Raises:
        UserError: If another user built the index, or its file is damaged.
    """
    path = check_file(snapshot.folder, entry.file)
    try:
        key = key_file().read_bytes()
    except OSError:
        key = b""
    # With an empty key, anybody could make a seal.
    if not key or not hmac.compare_digest(_seal(key, snapshot.state, entry).encode(), str(entry.seal).encode()):
        raise UserError(
            f"The index of {snapshot.folder} was built by another user, and is not read: every row is compared until "
            "proxemic gallery index builds it again."
        )
    try:
        content = np.fromfile(path, np.uint8)  # verify the bytes that Faiss then reads
        if hashlib.sha256(content.data).hexdigest() != entry.file.sha256:
            raise Damaged(path, "its checksum is another")
        return FaissIndex(_faiss.deserialize_index(content), entry)
    except (OSError, RuntimeError) as error:  # such as a file of a newer Faiss
        raise Damaged(path, error) from error


class FaissIndex:
    """Search a gallery by an index, which may be older than the gallery's state: newer rows are compared one by one."""

    def __init__(self, index: Any, entry: IndexEntry) -> None:
        self.index, self.entry = index, entry
        self._divided: tuple[Masks | None, Any] = (None, None)  # of the last search

    def _divide(self, snapshot: Snapshot, masks: Masks) -> tuple[Bool[np.ndarray, " ids"] | None, int, Masks | None]:
        """Split masks into a mask of the index's ids (None for all), their number, and masks of newer rows."""
        last = self.entry.last
        allowed, newer = np.zeros(last + 1, bool), []
        for segment, mask in zip(snapshot.segments, masks, strict=True):
            ids = segment.ids[mask]
            allowed[ids[ids <= last]] = True
            newer.append(mask & (segment.ids > last))
        count = int(np.count_nonzero(allowed))
        others = newer if any(mask.any() for mask in newer) else None
        return None if count == self.entry.rows else allowed, count, others

    def search(self, snapshot: Snapshot, queries: QueryRows, k: int, masks: Masks) -> Neighbours:
        """Find the nearest of the masked rows."""
        kind, rows, settings = self.entry.kind, self.entry.rows, self.entry.settings
        divided = self._divided
        if divided[0] is not masks:
            divided = self._divided = (masks, self._divide(snapshot, masks))
        allowed, count, newer = divided[1]
        effort = settings[EFFORT[kind]]
        if allowed is not None and count:
            # Only this share of the rows that a search meets is allowed.
            effort = min(-(-effort * rows // count), settings.get("lists", rows))
        if _compared(kind, settings, rows, k, effort) >= count:
            return snapshot.search(queries, k, masks)
        found = _found(self.index, kind, snapshot, queries, k, effort, allowed)
        lacking = found.ids[:, min(k, count) - 1] < 0  # missing hits come last
        if newer is not None:
            found = merge([found, snapshot.search(queries, k, newer)], len(queries), k)
        if lacking.any():
            found.distances[lacking], found.ids[lacking] = snapshot.search(queries[lacking], k, masks)
        return found


def _compared(kind: IndexKind, settings: Mapping[str, int], rows: int, k: int, effort: int) -> int:
    """Estimate how many exact comparisons take as long as a search of the index."""
    if kind == "hnsw":
        return 2 * settings["m"] * max(effort, k)
    return 20 * k + rows * effort // settings["lists"] // 4


def _found(
    index: Any,
    kind: IndexKind,
    snapshot: Snapshot,
    queries: QueryRows,
    k: int,
    effort: int,
    allowed: Bool[np.ndarray, " ids"] | None,
) -> Neighbours:
    """Search an index for its own rows, and compute exact distances."""
    distance = snapshot.state.info.distance
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
    arrays = _faiss.swig_ptr(queries), candidates, _faiss.swig_ptr(squares), _faiss.swig_ptr(ids)
    _faiss.Index.search_c(index, len(queries), *arrays, parameters)
    if kind == "hnsw":
        distances = squares / 2 if distance == "cosine" else np.sqrt(squares)  # 1 - cos of unit vectors
    else:
        distances = distances_at(
            queries, lambda some: snapshot.vectors_of(some.ravel()).reshape(*some.shape, -1), ids, distance
        )
    if (ids < 0).any():
        distances = np.where(ids < 0, np.float32(np.inf), distances)
    # Hits are mostly in order, and sorting takes as long as searching.
    in_order = ids.shape[1] == k and (distances[:, 1:] > distances[:, :-1]).all()
    return Neighbours(distances, ids) if in_order else merge([Neighbours(distances, ids)], len(queries), k)
