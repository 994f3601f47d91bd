"""A gallery in a folder."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64
from pyarrow.compute import is_in  # pyright: ignore[reportAttributeAccessIssue]

from proxemic.addresses import GALLERY_FILE
from proxemic.data.pixels.roots import merge_roots
from proxemic.errors import UserError, UserNote
from proxemic.retrieval.items import Where
from proxemic.retrieval.stores.local.database import Damaged, IndexEntry, connect, is_unchanged, read_state
from proxemic.retrieval.stores.local.segments import as_numbers, check_file
from proxemic.retrieval.stores.local.snapshot import BLOCK, Snapshot
from proxemic.retrieval.stores.local.writing import Change, another_gallery, changing, create_gallery, delete_gallery
from proxemic.retrieval.stores.settings import check_settings
from proxemic.retrieval.stores.store import GalleryInfo, IndexKind, Neighbours, Store

if TYPE_CHECKING:
    from proxemic.retrieval.stores.local.index import FaissIndex

_NO_INDEX = "every row is compared until proxemic gallery index builds the index again"


class LocalStore(Store):
    """A gallery in a folder: `gallery.sqlite` names segments, each a `.npy` file of vectors and an Arrow file of rows.

    A change writes new files, and then one transaction of SQLite names them, so that a process that is killed leaves
    the gallery as it was, or as it was to be; readers see one state or the other. The next writer removes the files
    that no transaction names.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact", "hnsw", "ivfpq")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: tuple[IndexEntry | None, FaissIndex | None] = (None, None)
        self._snapshot: Snapshot | None = None
        super().__init__(str(folder), self._now().state.info)

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        create_gallery(Path(address), info)
        return cls(Path(address))

    @classmethod
    def open(cls, address: str) -> Self:
        return cls(Path(address))

    @classmethod
    def delete(cls, address: str) -> None:
        delete_gallery(Path(address))

    def _now(self) -> Snapshot:
        """Return the state that other processes may have changed.

        In the transaction that reads it no writer commits, so that no file that it names is removed.
        """
        before = self._snapshot
        with connect(self.folder, "read") as db:
            db.execute("BEGIN")
            if before is not None and is_unchanged(db, before.state):
                return before
            state = read_state(db, self.folder)
            if before is not None and state.token != before.state.token:
                raise another_gallery(self.folder)
            snapshot = self._snapshot = Snapshot(self.folder, state, before)
        return snapshot

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        with changing(self.folder, self._snapshot) as change:
            yield change
        self._now()

    def __len__(self) -> int:
        return self._now().rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self._now().columns

    @property
    def roots(self) -> tuple[str, ...]:
        return self._now().state.roots

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def add_roots(self, roots: Sequence[str]) -> None:
        with self._changing() as change:
            change.state = replace(change.state, roots=merge_roots([*change.state.roots, *roots]))

    def add(self, vectors: Float32[np.ndarray, "rows dim"], items: pa.Table) -> Int64[np.ndarray, " rows"]:
        with self._changing() as change:
            return change.add(vectors, items)

    def remove(self, where: Where) -> int:
        with self._changing() as change:
            return change.remove(where)

    def replace_rows(self, vectors: Float32[np.ndarray, "rows dim"], items: pa.Table) -> Int64[np.ndarray, " rows"]:
        with self._changing() as change:
            change.remove({"path": items["path"].to_pylist()})
            return change.add(vectors, items)

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, where: Where | None = None) -> Neighbours:
        snapshot = self._now()
        masks, index = snapshot.meeting(where), self._read_index(snapshot)
        return snapshot.search(queries, k, masks) if index is None else index.search(snapshot, queries, k, masks)

    def _read_index(self, snapshot: Snapshot) -> "FaissIndex | None":
        """Return the index of a state, if it has one that can be used; it is read when it is first needed."""
        entry = snapshot.state.index
        if entry is not None and entry != self._index[0]:
            try:
                self._index = entry, _indexing().load(snapshot, entry)
            except UserError as error:
                self._index = entry, None
                note = Damaged(error.path, error.why, _NO_INDEX) if isinstance(error, Damaged) else error
                warnings.warn(str(note), UserNote, stacklevel=4)
        return None if entry is None else self._index[1]

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        wanted, known = pa.array(paths, pa.string()), set()
        for segment in self._now().segments:
            column = segment.read(["path"])["path"]
            there = is_in(column, value_set=wanted).to_numpy(zero_copy_only=False) & segment.live
            known.update(column.take(as_numbers(np.flatnonzero(there))).to_pylist())
        return known

    def items(self, ids: Int64[np.ndarray, " rows"]) -> pa.Table:
        assert self._snapshot is not None
        return _items(self._snapshot, ids)  # the state that was searched

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[Float32[np.ndarray, "rows dim"], pa.Table]:
        snapshot = self._now()
        there = np.intersect1d(ids, snapshot.live_ids())
        return snapshot.vectors_of(there), _items(snapshot, there)

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> Int64[np.ndarray, " some"]:
        snapshot, found = self._now(), [np.empty(0, np.int64)]
        for segment, mask in zip(snapshot.segments, snapshot.meeting(where), strict=True):
            first = np.searchsorted(segment.ids, after, "right")
            found.append(segment.ids[first:][mask[first:]][:count])
        return np.concatenate(found)[:count]

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        return _iterate(self._now(), batch_size)

    def count_labels(self) -> Counter[str | None]:
        counts: Counter[str | None] = Counter()
        for segment in self._now().segments:
            counts.update(segment.read(["label"], np.flatnonzero(segment.live))["label"].to_pylist())
        return counts

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        if kind not in self.indexes or kind == "exact":
            check_settings(self.address, kind, settings, {name: {} for name in self.indexes})
        with self._changing() as change:
            index = None if kind == "exact" else _indexing().build(change.snapshot, kind, settings)
            change.state = replace(change.state, index=index)

    @property
    def index(self) -> dict[str, Any]:
        snapshot = self._now()
        entry = snapshot.state.index
        if entry is None:
            return {"kind": "exact", "rows": snapshot.rows}
        return {"kind": entry.kind, "rows": entry.rows, "recall@10": entry.recall, **entry.settings}

    def verify(self) -> list[str]:
        found: list[str] = []
        try:
            with connect(self.folder, "read") as db:
                if (pages := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                    raise Damaged(self.folder / GALLERY_FILE, pages)
            snapshot = self._now()
        except Damaged as error:
            return [str(error)]
        for segment in snapshot.segments:
            try:
                segment.verify()
            except Damaged as error:
                found.append(str(error))
        if snapshot.state.index is not None:
            try:
                check_file(self.folder, snapshot.state.index.file, content=True)
            except Damaged as error:
                found.append(str(Damaged(error.path, error.why, _NO_INDEX)))
        if found and self._now() is not snapshot:  # what a writer has removed meanwhile is not damaged
            return self.verify()
        return found


def _indexing() -> ModuleType:
    """Return the module of indexes, which imports Faiss, for 0.15 s: many a search does without."""
    from proxemic.retrieval.stores.local import index

    return index


def _items(snapshot: Snapshot, ids: Int64[np.ndarray, " some"]) -> pa.Table:
    """Return the columns of some rows, in their order."""
    parts, order = [_with_ids(snapshot, np.empty(0, np.int64), pa.table({}))], [np.empty(0, np.int64)]
    for segment in snapshot.segments:
        places, own = segment.places(ids)
        if len(own):
            parts.append(_with_ids(snapshot, ids[own], segment.read(None, places)))
            order.append(own)
    found = np.concatenate(order)
    if len(found) < len(ids):
        missing = np.delete(ids, found)[0]
        raise UserError(f"Row {missing} is not in {snapshot.folder} any more: search again.")
    return pa.concat_tables(parts).take(as_numbers(np.argsort(found)))


def _with_ids(snapshot: Snapshot, ids: np.ndarray, table: pa.Table) -> pa.Table:
    """Add ids and all columns, which rows that were added before a column was there have empty."""
    names = snapshot.columns[1:]
    cells = [table[name] if name in table.column_names else pa.nulls(len(ids), pa.string()) for name in names]
    return pa.table([as_numbers(ids), *cells], names=["id", *names])


def _iterate(snapshot: Snapshot, batch_size: int) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
    for segment in snapshot.segments:
        places = np.flatnonzero(segment.live)
        # Taking rows of a table takes longer than slicing one, and a batch may be small.
        for start in range(0, len(places), BLOCK):
            part = places[start : start + BLOCK]
            table = _with_ids(snapshot, segment.ids[part], segment.read(None, part))
            for first in range(0, len(part), batch_size):
                some = part[first : first + batch_size]
                yield segment.vectors[some], table[first : first + len(some)]
