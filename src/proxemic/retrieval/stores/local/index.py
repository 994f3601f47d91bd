"""An index of a gallery's folder: built of all rows, sealed, and searched together with newer rows.

Hostile files lead Faiss out of its memory. Therefore only an index that this user has built is read: its seal is an
HMAC by a key in the user's own configuration folder.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import platformdirs
from jaxtyping import Bool, Float32, Int64
from tqdm import tqdm

from proxemic.errors import UserError
from proxemic.files import write_atomically, write_errors
from proxemic.locks import lock_in_turn
from proxemic.retrieval.stores.distances import merge
from proxemic.retrieval.stores.local.database import Damaged, IndexEntry, State
from proxemic.retrieval.stores.local.exact import distances_at, nearest
from proxemic.retrieval.stores.local.kinds import KINDS, FaissIndex, check, engine
from proxemic.retrieval.stores.local.segments import check_size, write_file
from proxemic.retrieval.stores.local.snapshot import Masks, Snapshot
from proxemic.retrieval.stores.store import IndexKind, Neighbours

_QUERIES, _K, _RECALL = 500, 10, 0.98  # of the measurement that decides how far a search looks
_LEARNT_FROM = 262_144  # rows
_AT_ONCE = 8192  # rows that are handed to Faiss


def key_file() -> Path:
    """Return where the key of this user is, by which indexes are sealed."""
    return platformdirs.user_config_path("proxemic") / "index.key"


def _key() -> bytes:
    """Read the key of this user, which is made if need be."""
    path = key_file()
    with write_errors(path), lock_in_turn(path):
        if not path.exists():
            with write_atomically(path) as temporary:
                temporary.touch(0o600)
                temporary.write_bytes(secrets.token_bytes(32))
        return path.read_bytes()


def _seal(key: bytes, state: State, entry: IndexEntry) -> str:
    """Return the HMAC of an index and of all that a search relies on; the entry has the checksum of its file."""
    content = {"token": state.token, "info": state.info.to_json(), **asdict(replace(entry, seal=""))}
    return hmac.digest(key, json.dumps(content, sort_keys=True).encode(), "sha256").hex()


def build(snapshot: Snapshot, kind: IndexKind, given: Mapping[str, int]) -> IndexEntry:
    """Build an index of all rows, measure its recall and write it.

    It is searched by rows that it does not have yet: the neighbours of those that it has are easier to find. Unless the
    effort of a search is given, it is the least that finds 98 % of the ten nearest.
    """
    info, chosen, ids = snapshot.state.info, KINDS[kind], snapshot.live_ids()
    settings = check(str(snapshot.folder), kind, given, len(ids), info.dim)
    if not len(ids):
        raise UserError(f"{snapshot.folder} has no rows to make an index of: add pictures first.")
    key = _key()
    rng = np.random.default_rng(0)
    held_out = np.sort(rng.choice(len(ids), min(_QUERIES, len(ids) // 10), replace=False))
    rest, held_out = np.delete(ids, held_out), ids[held_out]
    queries = snapshot.vectors_of(held_out)
    learnt_from = np.sort(rng.choice(len(rest), min(_LEARNT_FROM, len(rest)), replace=False))
    made = chosen.make(snapshot.vectors_of(rest[learnt_from]), settings)
    index = FaissIndex(chosen, settings, engine.IndexIDMap(made))
    right = merge([], len(queries), _K)
    with tqdm(total=len(rest), desc=kind, unit="row", leave=False, disable=None) as bar:
        for first in range(0, len(rest), _AT_ONCE):
            some = rest[first : first + _AT_ONCE]
            vectors = snapshot.vectors_of(some)
            index.index.add_with_ids(vectors, some)
            distances, places = nearest(queries, vectors, _K, info.distance)
            right = merge([right, Neighbours(distances, some[places])], len(queries), _K)
            bar.update(len(some))
    recall = None
    for effort in [settings[chosen.effort]] if settings[chosen.effort] else chosen.efforts(settings):
        settings[chosen.effort] = effort
        if len(queries):
            recall = _share(_found(snapshot, index, queries, _K, effort, None).ids, right.ids)
        if recall is not None and recall >= _RECALL:
            break
    index.index.add_with_ids(queries, held_out)
    file = write_file(snapshot.folder, snapshot.state.new_name("index"), engine.serialize_index(index.index))
    entry = IndexEntry(kind, len(ids), int(ids[-1]), settings, recall, file, "")
    return replace(entry, seal=_seal(key, snapshot.state, entry))


def _share(found: Int64[np.ndarray, "queries k"], right: Int64[np.ndarray, "queries k"]) -> float:
    """Return the share of the right ids that was found."""
    return float(((found[:, :, None] == right[:, None]) & (right >= 0)[:, None]).sum() / (right >= 0).sum())


def load(snapshot: Snapshot, entry: IndexEntry) -> FaissIndex:
    """Read an index into memory.

    Raises:
        UserError: If another user built it, or its file is not what was written.
    """
    path = check_size(snapshot.folder, entry.file)
    try:
        key = key_file().read_bytes()
    except OSError:
        key = b""
    # Without a key, anybody could make a seal.
    if not key or not hmac.compare_digest(_seal(key, snapshot.state, entry).encode(), entry.seal.encode()):
        raise UserError(
            f"The index of {snapshot.folder} was built by another user, and is not read: every row is compared until "
            "proxemic gallery index builds it again."
        )
    try:
        content = np.fromfile(path, np.uint8)  # what is verified is what is read
        if hashlib.sha256(content.data).hexdigest() != entry.file.sha256:
            raise Damaged(path, "its checksum is another")
        return FaissIndex(KINDS[entry.kind], entry.settings, engine.deserialize_index(content))
    except (OSError, RuntimeError) as error:  # it cannot be opened, or Faiss is older than the one that wrote it
        raise Damaged(path, error) from error


class IndexSearch:
    """Search a state of the gallery by an index, which may have been made of an older state.

    Rows that were added since are compared one by one.
    """

    def __init__(self, index: FaissIndex, entry: IndexEntry, snapshot: Snapshot) -> None:
        self.index = index
        self.entry = entry
        self.snapshot = snapshot
        self._live = self._divide(snapshot.live)

    def _divide(self, masks: Masks) -> tuple[Bool[np.ndarray, " ids"] | None, int, Masks | None]:
        """Return which ids of the index are meant (None is all) and how many, and which newer rows."""
        last = self.entry.last
        allowed, newer = np.zeros(last + 1, bool), []
        for segment, mask in zip(self.snapshot.segments, masks, strict=True):
            meant = np.ones(len(segment.ids), bool) if mask is None else mask
            ids = segment.ids[meant]
            allowed[ids[ids <= last]] = True
            newer.append(meant & (segment.ids > last))
        count = int(np.count_nonzero(allowed))
        others = newer if any(mask.any() for mask in newer) else None
        return None if count == self.entry.rows else allowed, count, others

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, masks: Masks) -> Neighbours:
        """Find the nearest of some rows."""
        snapshot, index, rows = self.snapshot, self.index, self.entry.rows
        settings = self.entry.settings
        allowed, count, newer = self._live if masks is snapshot.live else self._divide(masks)
        effort = settings[index.kind.effort]
        if allowed is not None and count:
            # A search meets rows that it may not give as often as others.
            effort = min(-(-effort * rows // count), settings.get("lists", rows))
        if index.kind.compared(settings, rows, k, effort) >= count:
            return snapshot.search(queries, k, masks)
        found = _found(snapshot, index, queries, k, effort, allowed)
        lacking = found.ids[:, min(k, count) - 1] < 0  # what was not found comes last
        if newer is not None:
            found = merge([found, snapshot.search(queries, k, newer)], len(queries), k)
        if lacking.any():
            found.distances[lacking], found.ids[lacking] = snapshot.search(queries[lacking], k, masks)
        return found


def _found(
    snapshot: Snapshot,
    index: FaissIndex,
    queries: Float32[np.ndarray, "queries dim"],
    k: int,
    effort: int,
    allowed: Bool[np.ndarray, " ids"] | None,
) -> Neighbours:
    """Find what an index has of its own rows, with exact distances."""
    distance = snapshot.state.info.distance
    squares, ids = index.search(queries, min(k * index.kind.candidates, index.index.ntotal), effort, allowed)
    if index.kind.candidates == 1:
        distances = squares / 2 if distance == "cosine" else np.sqrt(squares)  # 1 - cos of unit vectors
    else:
        distances = distances_at(
            queries, lambda some: snapshot.vectors_of(some.ravel()).reshape(*some.shape, -1), ids, distance
        )
    if (ids < 0).any():
        distances = np.where(ids < 0, np.float32(np.inf), distances)
    # Most are in their order, and sorting takes as long as finding.
    in_order = ids.shape[1] == k and (distances[:, 1:] > distances[:, :-1]).all()
    return Neighbours(distances, ids) if in_order else merge([Neighbours(distances, ids)], len(queries), k)
