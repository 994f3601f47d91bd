"""An index of a gallery's folder: built of all rows, kept as plain arrays, and searched together with newer rows.

Faiss's own files are never read: hostile ones lead it out of its memory. An index is put together from arrays whose
checksum and values are those that it may have.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float32, Int64
from tqdm import tqdm

from proxemic.errors import UserError
from proxemic.retrieval.stores.distances import exact_distances, merge
from proxemic.retrieval.stores.local.arrays import check_content, check_size, map_arrays
from proxemic.retrieval.stores.local.exact import nearest
from proxemic.retrieval.stores.local.hnsw import AT_ONCE, HnswIndex
from proxemic.retrieval.stores.local.ivfpq import IvfPqIndex
from proxemic.retrieval.stores.local.manifest import Damaged, IndexEntry
from proxemic.retrieval.stores.local.snapshot import Masks, Snapshot
from proxemic.retrieval.stores.store import Neighbours

KINDS: Mapping[str, type[HnswIndex] | type[IvfPqIndex]] = {"hnsw": HnswIndex, "ivfpq": IvfPqIndex}

_QUERIES, _K, _RECALL = 500, 10, 0.98  # of the measurement that decides how far a search looks
_LEARNT_FROM = 262_144  # rows
_NUMBERS = 2**22  # that are compared again at once


def build(
    snapshot: Snapshot, kind: str, given: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], dict[str, int], float | None]:
    """Arrays of an index of all rows, its settings, and the recall of searches with them.

    It is searched by rows that it does not have yet: the neighbours of those that it has are easier to find. Unless the
    effort of a search is given, it is the least that finds 98 % of the ten nearest.
    """
    info, made = snapshot.manifest.info, KINDS[kind]
    for name, value in given.items():
        if name not in made.names or isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{kind} has no setting {name}={value!r}: it has whole numbers {', '.join(made.names)}.")
    ids = snapshot.live_ids()
    if not len(ids):
        raise UserError(f"{snapshot.folder} has no rows to make an index of: add pictures first.")
    settings = made.check(given, len(ids), info.dim)
    rng = np.random.default_rng(0)
    held_out = np.sort(rng.choice(len(ids), min(_QUERIES, len(ids) // 10), replace=False))
    ids = np.concatenate([np.delete(ids, held_out), ids[held_out]])
    rest, queries = ids[: len(ids) - len(held_out)], snapshot.vectors_of(ids[len(ids) - len(held_out) :])
    learnt_from = np.sort(rng.choice(len(rest), min(_LEARNT_FROM, len(rest)), replace=False))
    index = made.new(snapshot.vectors_of(rest[learnt_from]), settings)
    right = merge([], len(queries), _K)
    with tqdm(total=len(rest), desc=kind, unit="row", leave=False, disable=None) as bar:
        for first in range(0, len(rest), AT_ONCE):
            some = rest[first : first + AT_ONCE]
            vectors = snapshot.vectors_of(some)
            index.add(vectors)
            distances, places = nearest(queries, vectors, _K, info.distance)
            right = merge([right, Neighbours(distances, some[places])], len(queries), _K)
            bar.update(len(some))
    recall = None
    for effort in [settings[made.effort]] if made.effort in settings else index.efforts():
        settings[made.effort] = effort
        if len(queries):
            found = _found(snapshot, index, rest, queries, _K, effort, None)
            recall = _share(found.ids, right.ids)
        if recall is not None and recall >= _RECALL:
            break
    index.add(queries)
    return {"ids": ids, **index.arrays()}, settings, recall


def _share(found: Int64[np.ndarray, "queries k"], right: Int64[np.ndarray, "queries k"]) -> float:
    """Of the right ids, how many were found."""
    return float(((found[:, :, None] == right[:, None]) & (right >= 0)[:, None]).sum() / (right >= 0).sum())


class LoadedIndex:
    """An index in memory.

    Args:
        snapshot: The state of the gallery whose index it is.
        entry: What the manifest says of it.

    Raises:
        UserError: If its file is not what was written, or cannot be an index of these rows.
    """

    def __init__(self, snapshot: Snapshot, entry: IndexEntry) -> None:
        self.entry = entry
        path = check_size(snapshot.folder, entry.file)
        check_content(path, entry.file)
        arrays, _ = map_arrays(path)
        try:
            self.ids, self.order = _checked_ids(arrays.pop("ids"), entry)
            made = KINDS[entry.kind]
            if {*entry.settings} != {*made.names}:
                raise ValueError(f"its settings are {', '.join(entry.settings)}")
            there = np.isin(self.ids, snapshot.ids)
            dim = snapshot.manifest.info.dim
            self.index = made.from_arrays(
                arrays, entry.settings, there, lambda places: snapshot.vectors_of(self.ids[places]), dim
            )
        except (ValueError, KeyError) as error:
            raise Damaged(path, error) from error


def _checked_ids(ids: np.ndarray, entry: IndexEntry) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
    """The ids of an index's rows, and the places at which they ascend."""
    if ids.dtype != np.int64 or ids.shape != (entry.rows,) or not entry.rows:
        raise ValueError(f"its ids are {ids.dtype} {list(ids.shape)}")
    order = np.argsort(ids, kind="stable")
    if (np.diff(ids[order]) <= 0).any() or ids[order[0]] < 0 or ids[order[-1]] > entry.last:
        raise ValueError("its ids are out of range, or come twice")
    return np.array(ids), order


class IndexSearch:
    """A search of a state of the gallery by an index, which may have been made of an older state.

    Rows that were added since are compared one by one.
    """

    def __init__(self, loaded: LoadedIndex, snapshot: Snapshot) -> None:
        self.loaded = loaded
        self.snapshot = snapshot
        ids, order = loaded.ids, loaded.order
        places = order[np.minimum(np.searchsorted(ids, snapshot.ids, sorter=order), len(ids) - 1)]
        self._places = np.where(ids[places] == snapshot.ids, places, -1)  # of each row in the index, or -1
        self._live = self._divide(snapshot.live)

    def _divide(self, masks: Masks) -> tuple[Bool[np.ndarray, " rows"] | None, int, Masks | None]:
        """Which rows of the index are meant (None is all) and how many, and which others."""
        shards = self.snapshot.shards
        meant = np.concatenate(
            [
                np.empty(0, bool),
                *(
                    np.ones(len(shard.ids), bool) if mask is None else mask
                    for shard, mask in zip(shards, masks, strict=True)
                ),
            ]
        )
        inside = self._places >= 0
        allowed = np.zeros(len(self.loaded.ids), bool)
        allowed[self._places[meant & inside]] = True
        count = int(np.count_nonzero(allowed))
        others = meant & ~inside
        ends = np.cumsum([len(shard.ids) for shard in shards])[:-1]
        return (
            None if count == len(allowed) else allowed,
            count,
            np.split(others, ends) if others.any() else None,
        )

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, masks: Masks) -> Neighbours:
        """The nearest of some rows."""
        snapshot, loaded, index = self.snapshot, self.loaded, self.loaded.index
        allowed, count, others = self._live if masks is snapshot.live else self._divide(masks)
        effort = loaded.entry.settings[index.effort]
        if allowed is not None and count:
            # A search meets rows that it may not give as often as others.
            effort = min(-(-effort * len(loaded.ids) // count), index.most_effort)
        if index.compared(k, effort) >= count:
            return snapshot.search(queries, k, masks)
        found = _found(snapshot, index, loaded.ids, queries, k, effort, allowed)
        lacking = found.ids[:, min(k, count) - 1] < 0  # what was not found comes last
        if others is not None:
            found = merge([found, snapshot.search(queries, k, others)], len(queries), k)
        if lacking.any():
            found.distances[lacking], found.ids[lacking] = snapshot.search(queries[lacking], k, masks)
        return found


def _found(
    snapshot: Snapshot,
    index: HnswIndex | IvfPqIndex,
    ids: Int64[np.ndarray, " rows"],
    queries: Float32[np.ndarray, "queries dim"],
    k: int,
    effort: int,
    allowed: Bool[np.ndarray, " rows"] | None,
) -> Neighbours:
    """What an index finds of its own rows, with exact distances."""
    cosine = snapshot.manifest.info.distance == "cosine"
    squares, places = index.search(queries, min(k * index.candidates, len(ids)), effort, allowed)
    if index.is_exact:
        distances = squares / 2 if cosine else np.sqrt(squares)  # of unit vectors, 1 - cos is half of the square
    else:
        step = max(1, _NUMBERS // (places.shape[1] * queries.shape[1]))
        distances = np.empty_like(squares)
        for first in range(0, len(queries), step):
            part = slice(first, first + step)
            vectors = snapshot.vectors_of(ids[places[part]].ravel()).reshape(*places[part].shape, -1)
            distances[part] = exact_distances(queries[part], vectors, snapshot.manifest.info.distance)
    rows = ids[places]
    if (places < 0).any():
        distances, rows = np.where(places < 0, np.float32(np.inf), distances), np.where(places < 0, -1, rows)
    found = Neighbours(distances, rows)
    # Most are in their order, and sorting takes as long as finding.
    in_order = rows.shape[1] == k and (distances[:, 1:] > distances[:, :-1]).all()
    return found if in_order else merge([found], len(queries), k)
