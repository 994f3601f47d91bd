"""A gallery in a folder, which one writer at a time changes."""

import getpass
import json
import os
import socket
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Int64
from pyarrow.compute import is_in  # pyright: ignore[reportAttributeAccessIssue]

from proxemic.addresses import GALLERY_FILE
from proxemic.data.roots import merge_roots
from proxemic.errors import UserError, UserNote
from proxemic.files import read_json, write_errors, write_json, write_text
from proxemic.models.saving import DESCRIPTION, FROZEN, WEIGHTS
from proxemic.retrieval.items import Where, check_where
from proxemic.retrieval.stores.local.database import (
    APPLICATION,
    DECISIONS_FILE,
    FILE_NAME,
    PATIENCE,
    Damaged,
    IndexEntry,
    connect,
    create_tables,
    is_unchanged,
    pragma,
    read_state,
    run_on_decisions,
    write_state,
)
from proxemic.retrieval.stores.local.segments import BLOCK, Segment, Snapshot, as_numbers, check_file, write_segment
from proxemic.retrieval.stores.store import (
    OWN_MODEL,
    FeatureRows,
    GalleryInfo,
    IndexKind,
    Neighbours,
    QueryRows,
    RowIds,
    Store,
    VectorRows,
    check_settings,
)

if TYPE_CHECKING:
    from proxemic.retrieval.stores.local.index import FaissIndex


_WRITER = ".writer.json"
_CALIBRATION = "calibration.json"
_FURTHER = (f"{DECISIONS_FILE}-journal", DECISIONS_FILE, _CALIBRATION)
_MODEL_FILES = (WEIGHTS, DESCRIPTION, FROZEN)


class Change:
    """A change of a gallery; `state` is the new state."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.state = snapshot.state
        self.segments = [*snapshot.segments]

    def add(self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None) -> RowIds:
        """Add rows and return their ids."""
        assert (features is None) == (self.state.info.features is None)
        ids = self.state.next_id + np.arange(len(vectors))
        if not len(ids):
            return ids
        # Small segments at the end are rewritten together with the new rows, and large ones stay, so that there are
        # never more than some dozens of segments.
        parts, all_ids, tables = [vectors], [ids], [items]
        kept = [] if features is None else [features]
        while self.segments and len(self.segments[-1].ids) < min(2 * sum(map(len, all_ids)) + 1, BLOCK):
            last = self.segments.pop()
            last.check()
            parts.insert(0, last.vectors[last.live])
            if last.features is not None:
                kept.insert(0, last.features[last.live])
            all_ids.insert(0, last.ids[last.live])
            tables.insert(0, last.read(None, np.flatnonzero(last.live)))
        table = pa.concat_tables(tables, promote_options="default")
        self._write(np.concatenate(all_ids), np.concatenate(parts), table, np.concatenate(kept) if kept else None)
        columns = tuple(dict.fromkeys((*self.state.columns, *items.column_names)))
        self._update(next_id=int(ids[-1]) + 1, columns=columns)
        return ids

    def remove(self, where: Where) -> int:
        """Remove the rows that meet all conditions and return their number."""
        conditions, count = check_where(where, ("id", *self.state.columns)), 0
        before, self.segments = self.segments, []
        for segment in before:
            going = segment.meeting(conditions)
            live = segment.live & ~going
            count += int(going.sum())
            if not going.any():
                self.segments.append(segment)
            elif live.mean() > 0.5:
                self.segments.append(segment.updated(replace(segment.entry, removed=np.packbits(~live).tobytes())))
            elif live.any():  # most rows are removed: rewrite the others
                segment.check()
                features = None if segment.features is None else segment.features[live]
                items = segment.read(None, np.flatnonzero(live))
                self._write(segment.ids[live], segment.vectors[live], items, features)
        self._update()
        return count

    def _write(self, ids: RowIds, vectors: np.ndarray, items: pa.Table, features: np.ndarray | None) -> None:
        folder, state = self.snapshot.folder, self.state
        entry = write_segment(folder, state, ids, vectors, items, features)
        self.segments.append(Segment(folder, entry, state.info))

    def _update(self, **changes: Any) -> None:
        self.state = replace(self.state, segments=tuple(segment.entry for segment in self.segments), **changes)


def _present(db: sqlite3.Connection, folder: Path, before: Snapshot | None) -> Snapshot:
    """Return the state before if it is unchanged, or else open the present state, in a transaction."""
    if before is not None and is_unchanged(db, before.state):
        return before
    state = read_state(db, folder)
    if before is not None and state.token != before.state.token:
        raise UserError(f"{folder} is another gallery than the one that was opened: open it again.")
    return Snapshot(folder, state, before.segments if before else ())


@contextmanager
def _only_writer(folder: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """Begin a transaction as the only writer; nothing changes without a COMMIT in the block."""
    with connect(folder, "written", timeout=0.1, mode=mode) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            who = "another process"
            with suppress(OSError, ValueError, KeyError, TypeError):
                writer = json.loads((folder / _WRITER).read_text())
                who = "process {process} of {user} on {host}, since {since}".format(**writer)
            raise UserError(
                f"{folder} is being written to by {who}: wait for it; searching goes on meanwhile."
            ) from None
        db.execute(f"PRAGMA busy_timeout={int(1000 * PATIENCE)}")  # a commit waits for readers
        yield db


def _sign(folder: Path) -> None:
    """Record this process as the writer, for messages of other processes."""
    writer = {"process": os.getpid(), "host": socket.gethostname(), "user": getpass.getuser()}
    write_text(folder / _WRITER, json.dumps(writer | {"since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}))


def _remove_files(folder: Path, token: str | None, named: set[str]) -> None:
    """Remove the files that the state does not name: those of killed writers and of earlier states.

    Readers keep earlier files open: they opened them in a transaction, in which the state could not change.
    """
    with write_errors(folder):
        for path in folder.iterdir():
            match = FILE_NAME.fullmatch(path.name)
            if match and match[2] == (token or match[2]) and path.name not in named:
                path.unlink(missing_ok=True)


def _remove_further(folder: Path) -> None:
    for name in _FURTHER:
        (folder / name).unlink(missing_ok=True)


def _refuse_full(folder: Path) -> None:
    is_gallery = False
    with suppress(UserError), connect(folder, "read") as db:
        is_gallery = pragma(db, "application_id") == APPLICATION
    if is_gallery:
        raise UserError(f"{folder} holds a gallery: add to it, choose another name, or delete it.")
    raise UserError(f"{folder} is not empty: choose a new or an empty folder for a gallery.")


_NO_INDEX = "every row is compared until proxemic gallery index builds the index again"


class LocalStore(Store):
    """A gallery in a folder: `gallery.sqlite` names segments, each a `.npy` file of vectors and an Arrow file of rows.

    A change writes new files, which one transaction of SQLite then names: a process that is killed leaves the old state
    or the new one, and readers see one or the other. The next writer removes files that no transaction names.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact", "hnsw", "ivfpq")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: tuple[IndexEntry | None, FaissIndex | None] = (None, None)
        with connect(folder, "read") as db:
            db.execute("BEGIN")
            self._snapshot = _present(db, folder, None)
        info = self._snapshot.state.info
        super().__init__(str(folder), replace(info, model=str(folder.absolute())) if info.model == OWN_MODEL else info)

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        folder = Path(address)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file: choose a new or an empty folder for a gallery.")
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        own = (GALLERY_FILE, f"{GALLERY_FILE}-journal", _WRITER, *_FURTHER)
        if any(path.name not in own and not FILE_NAME.fullmatch(path.name) for path in folder.iterdir()):
            _refuse_full(folder)
        with _only_writer(folder, "rwc") as db:
            if pragma(db, "schema_version"):
                _refuse_full(folder)
            _sign(folder)
            _remove_files(folder, None, set())
            _remove_further(folder)
            create_tables(db, info)
            db.execute("COMMIT")
        return cls(folder)

    @classmethod
    def open(cls, address: str) -> Self:
        return cls(Path(address))

    @classmethod
    def delete(cls, address: str) -> None:
        folder = Path(address)
        with _only_writer(folder) as db, write_errors(folder):
            state = read_state(db, folder)
            _sign(folder)
            # Without its database there is no gallery. If the process is killed from here on, the next `create` removes
            # the other files.
            (folder / GALLERY_FILE).unlink()
            _remove_files(folder, state.token, set())
            _remove_further(folder)
            for name in (_WRITER, *(_MODEL_FILES if state.info.model == OWN_MODEL else ())):
                (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # it has other files
            folder.rmdir()

    def _now(self) -> Snapshot:
        """Return the present state, which other processes may have changed."""
        with connect(self.folder, "read") as db:
            db.execute("BEGIN")  # as long as it lasts, no writer can remove files
            snapshot = self._snapshot = _present(db, self.folder, self._snapshot)
        return snapshot

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        """Make a change, which is committed at the end of the block; a killed process leaves the state before.

        Raises:
            UserError: If another process is writing; the message says which, and since when.
        """
        with _only_writer(self.folder) as db:
            change = Change(_present(db, self.folder, self._snapshot))
            before = change.state
            _sign(self.folder)
            _remove_files(self.folder, before.token, before.names())
            yield change
            if change.state != before:
                checksum = write_state(db, before.segments, change.state)
                db.execute("COMMIT")
                change.state = replace(change.state, checksum=checksum)
        self._snapshot = Snapshot(self.folder, change.state, change.segments)

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

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        path = self.folder / _CALIBRATION
        return read_json(path) if path.is_file() else None

    def keep_calibration(self, content: Mapping[str, Any]) -> None:
        write_json(self.folder / _CALIBRATION, dict(content))

    def add(self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None) -> RowIds:
        with self._changing() as change:
            return change.add(vectors, items, features)

    def remove(self, where: Where) -> int:
        with self._changing() as change:
            return change.remove(where)

    def replace_rows(
        self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None, removed: Sequence[str] = ()
    ) -> RowIds:
        with self._changing() as change:
            change.remove({"path": [*items["path"].to_pylist(), *removed]})
            return change.add(vectors, items, features)

    def features(self, ids: RowIds) -> FeatureRows | None:
        return self._snapshot.features_of(ids)

    def decisions(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return run_on_decisions(self.folder, statement, values)

    def search(self, queries: QueryRows, k: int, where: Where | None = None) -> Neighbours:
        snapshot = self._now()
        masks, index = snapshot.meeting(where), self._read_index(snapshot)
        return snapshot.search(queries, k, masks) if index is None else index.search(snapshot, queries, k, masks)

    def _read_index(self, snapshot: Snapshot) -> "FaissIndex | None":
        """Return the index of a state if it can be used; it is read when it is first needed."""
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

    def items(self, ids: RowIds) -> pa.Table:
        return _items(self._snapshot, ids)  # of the state that was searched

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[VectorRows, pa.Table]:
        snapshot = self._now()
        there = np.intersect1d(ids, snapshot.live_ids())
        return snapshot.vectors_of(there), _items(snapshot, there)

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> RowIds:
        snapshot, found = self._now(), [np.empty(0, np.int64)]
        for segment, mask in zip(snapshot.segments, snapshot.meeting(where), strict=True):
            first = np.searchsorted(segment.ids, after, "right")
            found.append(segment.ids[first:][mask[first:]][:count])
        return np.concatenate(found)[:count]

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[VectorRows, pa.Table]]:
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
        if found and self._now() is not snapshot:  # a writer may have removed the files
            return self.verify()
        return found


def _indexing() -> ModuleType:
    """Import the module of indexes when it is needed: Faiss takes 0.15 s."""
    from proxemic.retrieval.stores.local import index

    return index


def _items(snapshot: Snapshot, ids: Int64[np.ndarray, " some"]) -> pa.Table:
    """Return the columns of rows, in the order of the ids."""
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
    """Add ids and all columns; rows that are older than a column have empty cells."""
    names = snapshot.columns[1:]
    cells = [table[name] if name in table.column_names else pa.nulls(len(ids), pa.string()) for name in names]
    return pa.table([as_numbers(ids), *cells], names=["id", *names])


def _iterate(snapshot: Snapshot, batch_size: int) -> Iterator[tuple[VectorRows, pa.Table]]:
    for segment in snapshot.segments:
        places = np.flatnonzero(segment.live)
        # Slicing a table is faster than taking rows from it, and a batch may be small.
        for start in range(0, len(places), BLOCK):
            part = places[start : start + BLOCK]
            table = _with_ids(snapshot, segment.ids[part], segment.read(None, part))
            for first in range(0, len(part), batch_size):
                some = part[first : first + batch_size]
                yield segment.vectors[some], table[first : first + len(some)]
