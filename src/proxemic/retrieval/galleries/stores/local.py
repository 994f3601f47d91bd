"""A gallery in a folder: rows in SQLite, and vectors in a file to which rows are appended and which searches map.

A writer appends and syncs vectors before it commits the rows that name them. A killed writer leaves at most unused
bytes at the end, which the next one cuts.
"""

import json
import re
import secrets
import sqlite3
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from proxemic.addresses import GALLERY_FILE
from proxemic.data.roots import merge_roots
from proxemic.errors import UserError, UserNote
from proxemic.files import write_errors
from proxemic.models.description import DESCRIPTION, FROZEN, WEIGHTS
from proxemic.retrieval.galleries.items import Where, check_where
from proxemic.retrieval.galleries.stores.arrays import Mask
from proxemic.retrieval.galleries.stores.database import (
    APPLICATION,
    DECISIONS_NAMES,
    SCHEMA,
    IndexEntry,
    LocalState,
    as_table,
    condition_of,
    connect,
    damaged,
    numbers_of,
    pragma,
)
from proxemic.retrieval.galleries.stores.mapped import BLOCK, Snapshot, append, blocks, checksums
from proxemic.retrieval.galleries.stores.store import (
    OWN_MODEL,
    FeatureRows,
    GalleryInfo,
    IndexKind,
    Neighbours,
    QueryRows,
    RowIds,
    Store,
    VectorRows,
    check_format,
    check_settings,
)

if TYPE_CHECKING:
    from proxemic.retrieval.galleries.stores.index import FaissIndex

T = TypeVar("T")
_FILES = re.compile(r"(vectors|features)-[0-9a-f]{16}-\d+\.f32")
_MODEL_FILES = (WEIGHTS, DESCRIPTION, FROZEN)


class LocalStore(Store):
    """A gallery in a folder.

    Each use opens the database for one transaction, so that threads and forked processes share nothing, and a deleted
    or replaced gallery is noticed.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact", "hnsw", "ivfpq")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running = threading.local()  # its `db` is the connection of a transaction of this thread
        self._token: str | None = None
        self._seen: Snapshot | None = None
        self._met: tuple[object, Mask | None] = (None, None)  # the last conditions, and which rows meet them
        self._index: tuple[IndexEntry | None, FaissIndex | None] = (None, None)
        with self._transaction() as db:
            if pragma(db, "application_id") != APPLICATION:
                raise UserError(
                    f"{folder} holds no gallery ({GALLERY_FILE} is not a gallery's): give the folder of one."
                )
            check_format(folder, pragma(db, "user_version"))
            info = GalleryInfo.from_json(json.loads(db.execute("SELECT info FROM gallery").fetchone()[0]), folder)
            self._token = LocalState.read(db).token
        super().__init__(str(folder), replace(info, model=str(folder.absolute())) if info.model == OWN_MODEL else info)

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        folder = Path(address)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file: choose a new or an empty folder for a gallery.")
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(GALLERY_FILE)}
        left = {name for name in names if _FILES.fullmatch(name)}  # by a deletion that was killed
        if left != names and not (folder / GALLERY_FILE).exists():
            raise UserError(f"{folder} is not empty: choose a new or an empty folder for a gallery.")
        with connect(folder, "written", "rwc") as db:
            db.execute("BEGIN IMMEDIATE")
            if pragma(db, "application_id") == APPLICATION:
                raise UserError(f"{folder} holds a gallery: add to it, choose another name, or delete it.")
            if pragma(db, "schema_version") or left != names:
                raise UserError(f"{folder} is not empty: choose a new or an empty folder for a gallery.")
            for statement in SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION}")
            db.execute(f"PRAGMA user_version={info.to_json()['format']}")
            values = (secrets.token_hex(8), json.dumps(info.to_json()))
            db.execute("INSERT INTO gallery VALUES (?, ?, '[]', '[]', NULL, NULL, 0, 0, 0, x'', 0)", values)
            for name in left:
                (folder / name).unlink()
            db.execute("COMMIT")
        return cls(folder)

    @classmethod
    def open(cls, address: str) -> Self:
        return cls(Path(address))

    @classmethod
    def delete(cls, address: str) -> None:
        store = cls.open(address)
        folder, has_model = store.folder, store.info.model == str(store.folder.absolute())
        with store._transaction(write=True) as db, write_errors(folder):
            index = LocalState.read(db).faiss
            # Without its database there is no gallery. If the process is killed from here on, the next `create` removes
            # the other files.
            (folder / GALLERY_FILE).unlink()
            for path in [*folder.iterdir()]:
                is_journal = path.name == f"{GALLERY_FILE}-journal"
                if is_journal or store._owns(path) or (has_model and path.name in _MODEL_FILES):
                    path.unlink()
            if index is not None:
                IndexEntry(**index).path.unlink(missing_ok=True)
        with suppress(OSError):  # it has other files
            folder.rmdir()

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction, or in that which runs already; without an error, it is committed."""
        if (running := getattr(self._running, "db", None)) is not None:
            yield running
            return
        with connect(self.folder, "written" if write else "read") as db:
            db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if self._token is not None:
                state = LocalState.read(db)
                if state.token != self._token:
                    raise UserError(f"{self.folder} is another gallery than the one that was opened: open it again.")
                if write:
                    self._remove_replaced(state)
            self._running.db = db
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                self._seen = None  # it may be of this transaction
                raise
            finally:
                del self._running.db

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Change the gallery in a transaction, so that others read it again."""
        with self._transaction(write=True) as db:
            yield db
            db.execute("UPDATE gallery SET version = version + 1")

    def transaction(self, work: Callable[[], T]) -> T:
        with self._transaction(write=True):
            return work()

    def _owns(self, path: Path) -> bool:
        return bool(_FILES.fullmatch(path.name)) and path.name.split("-")[1] == self._token

    def _remove_replaced(self, state: LocalState) -> None:
        """Remove the files of other generations; whoever reads them has mapped them before the commit."""
        for path in self.folder.iterdir():
            if self._owns(path) and path.name.split("-")[2] != f"{state.generation}.f32":
                with suppress(OSError):
                    path.unlink()

    def _now(self) -> Snapshot:
        """Return the present state, which other processes may have changed."""
        with self._transaction() as db:
            state, seen = LocalState.read(db), self._seen
            if seen is None or seen.state.version != state.version:
                seen = self._seen = Snapshot.read(db, self.folder, self.info)
        return seen

    def __len__(self) -> int:
        return self._get("SELECT places - (SELECT count(*) FROM removed) FROM gallery")[0][0]

    def _get(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._transaction() as db:
            return db.execute(query, values).fetchall()

    def _state(self) -> LocalState:
        with self._transaction() as db:
            return LocalState.read(db)

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def add_roots(self, roots: Sequence[str]) -> None:
        with self._changing() as db:
            merged = merge_roots([*LocalState.read(db).roots, *roots])
            db.execute("UPDATE gallery SET roots = ?", (json.dumps(merged),))

    def keep_calibration(self, content: Mapping[str, Any]) -> None:
        with self._changing() as db:
            db.execute("UPDATE gallery SET calibration = ?", (json.dumps(dict(content)),))

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        found = self._get(
            "SELECT path FROM rows WHERE path IN (SELECT value FROM json_each(?))", [json.dumps([*paths])]
        )
        return {path for (path,) in found}

    def add(self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None) -> RowIds:
        assert (features is None) == (self.info.features is None)
        paths = items["path"].to_pylist()
        with self._changing() as db:
            known = "DELETE FROM rows WHERE path IN (SELECT value FROM json_each(?))"
            replaced = db.execute(known, (json.dumps(paths),)).rowcount
            state = LocalState.read(db)
            names = state.with_further(items.column_names)
            missing = [None] * len(paths)
            cells = [items[name].to_pylist() if name in items.column_names else missing for name in names]
            texts = map(json.dumps, zip(*cells, strict=True)) if names else ["[]"] * len(paths)
            ids = state.next_id + np.arange(len(vectors))
            rows = zip(ids.tolist(), paths, items["label"].to_pylist(), texts, strict=True)
            db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
            append(db, self.folder, state, vectors, features)
            counts = (json.dumps(names), state.next_id + len(ids), state.places + len(ids))
            db.execute("UPDATE gallery SET names = ?, next_id = ?, places = ?", counts)
            if replaced:
                self._compact(db)
        return ids

    def _compact(self, db: sqlite3.Connection) -> None:
        """Write the files again without removed rows if these are more than a third."""
        state, (removed,) = LocalState.read(db), db.execute("SELECT count(*) FROM removed").fetchone()
        if 3 * removed <= state.places:
            return
        snapshot = Snapshot.read(db, self.folder, self.info)
        for _ in snapshot.check(checksums(db)):
            pass
        db.execute("DELETE FROM blocks")
        db.execute("DELETE FROM removed")
        arrays, features, new = snapshot.arrays, snapshot.features, replace(state, generation=state.generation + 1)
        ids = arrays.live_ids()
        for first in range(0, len(ids), BLOCK):
            places = arrays.places(ids[first : first + BLOCK])
            some = None if features is None else features[places]
            append(db, self.folder, replace(new, places=first), arrays.vectors[places], some)
        values = (len(ids), new.generation, ids.astype("<i8").tobytes())
        db.execute("UPDATE gallery SET places = ?, generation = ?, ids = ?", values)

    def remove(self, where: Where) -> int:
        with self._changing() as db:
            condition, values = condition_of(where, LocalState.read(db))
            count = db.execute(f"DELETE FROM rows WHERE {condition}", values).rowcount
            self._compact(db)
        return count

    def set_labels(self, labels: Mapping[str, str | None]) -> int:
        query = (
            "UPDATE rows SET label = given.value FROM json_each(?) AS given "
            "WHERE rows.path = given.key AND rows.label IS NOT given.value"
        )
        with self._changing() as db:
            return db.execute(query, (json.dumps(dict(labels)),)).rowcount

    def decisions(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._transaction(write=not statement.startswith("SELECT")) as db:
            return db.execute(statement.format(**DECISIONS_NAMES), values).fetchall()

    def search(self, queries: QueryRows, k: int, where: Where | None = None) -> Neighbours:
        snapshot = self._now()
        mask, index = self._meeting(snapshot, where), self._read_index(snapshot)
        if index is None:
            return snapshot.arrays.search(queries, k, mask)
        return index.search(snapshot.arrays, queries, k, mask)

    def _meeting(self, snapshot: Snapshot, where: Where | None) -> Mask | None:
        """Return which rows meet all conditions; None if all do."""
        if not where:
            return snapshot.arrays.live
        asked = (snapshot.state.version, check_where(where, snapshot.state.columns))
        last = self._met
        if last[0] != asked:
            condition, values = condition_of(where, snapshot.state)
            with self._transaction() as db:
                ids = numbers_of(db.execute(f"SELECT id FROM rows WHERE {condition}", values))
            last = self._met = (asked, snapshot.arrays.mask_of(ids))
        return last[1]

    def _read_index(self, snapshot: Snapshot) -> "FaissIndex | None":
        """Return the index if it can be used; it is read when it is first needed."""
        if snapshot.state.faiss is None:
            return None
        entry = IndexEntry(**snapshot.state.faiss)
        if entry != self._index[0]:
            try:
                self._index = entry, _indexing().load(entry)
            except UserError as error:
                self._index = entry, None
                warnings.warn(f"{self.folder} is searched without its index: {error}", UserNote, stacklevel=4)
        return self._index[1]

    def items(self, ids: RowIds) -> pa.Table:
        query = "SELECT id, path, label, cells FROM rows WHERE id IN (SELECT value FROM json_each(?))"
        with self._transaction() as db:
            names = LocalState.read(db).further
            found = {row[0]: row for row in db.execute(query, (json.dumps(np.unique(ids).tolist()),))}
        return as_table([found[number] for number in ids.tolist() if number in found], names)

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[VectorRows, pa.Table]:
        with self._transaction():
            arrays, items = self._now().arrays, self.items(np.unique(ids))
        return arrays.vectors_of(items["id"].to_numpy()), items

    def features(self, ids: RowIds) -> FeatureRows | None:
        snapshot = self._seen or self._now()  # of the rows that were read last, which others may have removed since
        if snapshot.features is None:
            return None
        if (snapshot.arrays.places(ids) < 0).any():
            snapshot = self._now()
        places, features = snapshot.arrays.places(ids), snapshot.features
        if features is None or (places < 0).any():
            raise UserError(f"{self.folder} was changed by another process: begin again.")
        return features[places]

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> RowIds:
        with self._transaction() as db:
            condition, values = condition_of(where, LocalState.read(db))
            query = f"SELECT id FROM rows WHERE {condition} AND id > ? ORDER BY id LIMIT ?"
            return numbers_of(db.execute(query, (*values, after, count)))

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[VectorRows, pa.Table]]:
        query, tables = "SELECT id, path, label, cells FROM rows WHERE id BETWEEN ? AND ? ORDER BY id", []
        with self._transaction() as db:  # all rows of one state, also if the caller takes long
            snapshot, sums = self._now(), checksums(db)
            arrays = snapshot.arrays
            for _, first, end in blocks(0, snapshot.state.places):
                found = db.execute(query, (int(arrays.ids[first]), int(arrays.ids[end - 1]))).fetchall()
                tables.append(as_table(found, snapshot.state.further))
        for _, table in zip(snapshot.check(sums), tables, strict=True):
            for first in range(0, len(table), batch_size):
                part = table[first : first + batch_size]
                yield arrays.vectors_of(part["id"].to_numpy()), part

    def count_labels(self) -> Counter[str | None]:
        return Counter(dict(self._get("SELECT label, count(*) FROM rows GROUP BY label")))

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        if kind not in self.indexes or kind == "exact":
            check_settings(self.address, kind, settings, {name: {} for name in self.indexes})
        snapshot = self._now()
        entry = None if kind == "exact" else _indexing().build(self.address, snapshot.arrays, kind, settings)
        with self._changing() as db:
            before = LocalState.read(db).faiss
            db.execute("UPDATE gallery SET faiss = ?", (None if entry is None else json.dumps(entry.to_json()),))
        if before is not None:
            IndexEntry(**before).path.unlink(missing_ok=True)

    @property
    def index(self) -> dict[str, Any]:
        if (faiss := self._state().faiss) is None:
            return {"kind": "exact", "rows": len(self)}
        return {"kind": faiss["kind"], "rows": faiss["rows"], "recall@10": faiss["recall"], **faiss["settings"]}

    def verify(self) -> list[str]:
        path = self.folder / GALLERY_FILE
        try:
            with self._transaction() as db:
                if (pages := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                    raise damaged(path, pages)
                snapshot, sums = Snapshot.read(db, self.folder, self.info), checksums(db)
                ids = numbers_of(db.execute("SELECT id FROM rows ORDER BY id"))
            if not np.array_equal(ids, snapshot.arrays.live_ids()):
                raise damaged(path, f"its rows are not the {snapshot.arrays.rows:,} of its files")
            for _ in snapshot.check(sums):
                pass
        except UserError as error:
            return [str(error)]
        return []


def _indexing() -> ModuleType:
    """Import the module of indexes when it is needed: Faiss takes 0.15 s."""
    from proxemic.retrieval.galleries.stores import index

    return index
