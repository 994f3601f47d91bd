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

from proxemic.addresses import GALLERY_FILE
from proxemic.data.roots import merge_roots
from proxemic.errors import UserError, UserNote
from proxemic.retrieval.items import Where
from proxemic.retrieval.stores.local.database import Damaged, IndexEntry, is_unchanged, read_state, reading
from proxemic.retrieval.stores.local.segments import check_content, check_size
from proxemic.retrieval.stores.local.snapshot import Snapshot
from proxemic.retrieval.stores.local.writing import (
    Change,
    another_gallery,
    changing,
    create_gallery,
    delete_gallery,
)
from proxemic.retrieval.stores.settings import check_settings
from proxemic.retrieval.stores.store import GalleryInfo, IndexKind, Neighbours, Store

if TYPE_CHECKING:
    from proxemic.retrieval.stores.local.index import IndexSearch

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
        self._search: IndexSearch | None = None
        self._unusable: IndexEntry | None = None
        with reading(folder) as db:
            self._snapshot = Snapshot(folder, read_state(db, folder))
        super().__init__(str(folder), self._snapshot.state.info)

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
        """Return the state that other processes may have changed."""
        before = self._snapshot
        with reading(self.folder) as db:
            if is_unchanged(db, before.state):
                return before
            state = read_state(db, self.folder)
            if state.token != before.state.token:
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

    def add_roots(self, roots: Sequence[str]) -> None:
        with self._changing() as change:
            change.state = replace(change.state, roots=merge_roots([*change.state.roots, *roots]))

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        return self._now().known_paths(paths)

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
        return (self._by_index(snapshot) or snapshot).search(queries, k, snapshot.allowed(where))

    def _by_index(self, snapshot: Snapshot) -> "IndexSearch | None":
        """Return the index for a state, if it has one that can be used; it is read when it is first needed."""
        entry, search = snapshot.state.index, self._search
        if entry is None or entry == self._unusable:
            return None
        if search is None or search.entry != entry:
            try:
                index = _indexing().load(snapshot, entry)
            except UserError as error:
                self._unusable = entry
                note = Damaged(error.path, error.why, _NO_INDEX) if isinstance(error, Damaged) else error
                warnings.warn(str(note), UserNote, stacklevel=4)
                return None
            search = self._search = _indexing().IndexSearch(index, entry, snapshot)
        elif search.snapshot is not snapshot:
            search = self._search = _indexing().IndexSearch(search.index, entry, snapshot)
        return search

    def items(self, ids: Int64[np.ndarray, " rows"]) -> pa.Table:
        return self._snapshot.items(ids)  # the state that was searched

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> Int64[np.ndarray, " some"]:
        snapshot = self._now()
        return snapshot.next_ids(after, count, snapshot.allowed(where))

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[Float32[np.ndarray, "rows dim"], pa.Table]:
        snapshot = self._now()
        there = np.intersect1d(ids, snapshot.live_ids())
        return snapshot.vectors_of(there), snapshot.items(there)

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        return self._now().iterate(batch_size)

    def count_labels(self) -> Counter[str | None]:
        return self._now().count_labels()

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

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
        with _noting(found):
            with reading(self.folder) as db:
                pages = [text for (text,) in db.execute("PRAGMA integrity_check(1)") if text != "ok"]
            if pages:
                raise Damaged(self.folder / GALLERY_FILE, pages[0])
            snapshot = self._now()
            for segment in snapshot.segments:
                with _noting(found):
                    segment.verify()
            if snapshot.state.index is not None:
                with _noting(found, _NO_INDEX):
                    check_content(check_size(self.folder, snapshot.state.index.file), snapshot.state.index.file)
            if found and self._now() is not snapshot:  # what a writer has removed meanwhile is not damaged
                return self.verify()
        return found


def _indexing() -> ModuleType:
    """Return the module of indexes, which imports Faiss, for 0.15 s: many a search does without."""
    from proxemic.retrieval.stores.local import index

    return index


@contextmanager
def _noting(found: list[str], remedy: str | None = None) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        found.append(str(error if remedy is None else Damaged(error.path, error.why, remedy)))
