"""A gallery in a folder."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from proxemic.data.pixels.roots import merge_roots
from proxemic.errors import UserError, UserNote
from proxemic.files import write_errors
from proxemic.retrieval.items import Where, check_where, matching
from proxemic.retrieval.stores.local.arrays import check_content, check_size, write_arrays
from proxemic.retrieval.stores.local.deleting import delete_folder, finish_deleting
from proxemic.retrieval.stores.local.exact import BLOCK
from proxemic.retrieval.stores.local.manifest import MANIFEST, NAME, Damaged, IndexEntry, Manifest, Shard
from proxemic.retrieval.stores.local.shards import write_shard
from proxemic.retrieval.stores.local.snapshot import Snapshot
from proxemic.retrieval.stores.local.writing import check_is_empty, only_writer
from proxemic.retrieval.stores.store import GalleryInfo, IndexKind, Neighbours, Store

if TYPE_CHECKING:
    from proxemic.retrieval.stores.local.index import IndexSearch, LoadedIndex

_NO_INDEX = "every row is compared until the index is built again"


class LocalStore(Store):
    """A gallery in a folder: `manifest.json` names shards of vectors (safetensors) and of tables (Parquet).

    A change writes new files and then replaces the manifest, so that a process that is killed leaves the gallery as it
    was, or as it was to be; readers see one state or the other. What no manifest names any more is removed by the
    change after the next, as a reader may just be opening it.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact", "hnsw", "ivfpq")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index: LoadedIndex | None = None
        self._search: IndexSearch | None = None
        self._unusable: IndexEntry | None = None
        self._manifest = folder / MANIFEST
        self._state = self._file_state()
        self._open(Manifest.read_bytes(folder))
        super().__init__(str(folder), self._snapshot.manifest.info)

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        folder = Path(address)
        finish_deleting(folder)
        check_is_empty(folder)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with only_writer(folder):
            check_is_empty(folder)
            Manifest(info).write(folder)
        return cls(folder)

    @classmethod
    def open(cls, address: str) -> Self:
        return cls(Path(address))

    @classmethod
    def delete(cls, address: str) -> None:
        delete_folder(Path(address))

    def _open(self, read: bytes) -> None:
        while True:
            try:
                self._snapshot = Snapshot(self.folder, Manifest.parse(self.folder, read))
            except UserError:
                # A writer may have replaced the manifest since it was read, and removed what this one names.
                if (now := Manifest.read_bytes(self.folder)) == read:
                    raise
                read = now
            else:
                self._read = read
                return

    def _now(self) -> Snapshot:
        """The state that other processes may have changed."""
        # Before it is read: if it changes meanwhile, the next call looks again. A replaced file is another one, and
        # each search looks here, and should not notice.
        if (state := self._file_state()) == self._state and state is not None:
            return self._snapshot
        read = Manifest.read_bytes(self.folder)
        self._state = state
        if read != self._read:
            self._open(read)
            if self._snapshot.manifest.info != self.info:
                raise UserError(f"{self.folder} is another gallery than the one that was opened: open it anew.")
        return self._snapshot

    def _file_state(self) -> tuple[int, int, int] | None:
        try:
            status = self._manifest.stat()
        except OSError:
            return None  # which reading it explains
        return status.st_ino, status.st_mtime_ns, status.st_size

    def __len__(self) -> int:
        return self._now().manifest.rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self._now().columns

    @property
    def roots(self) -> tuple[str, ...]:
        return self._now().manifest.roots

    def add_roots(self, roots: Sequence[str]) -> None:
        with only_writer(self.folder):
            snapshot = self._now()
            merged = merge_roots([*snapshot.manifest.roots, *roots])
            self._commit(snapshot.manifest.shards, snapshot.removed, roots=merged)

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        return self._now().known_paths(paths)

    def add(self, vectors: Float32[np.ndarray, "rows dim"], items: pa.Table) -> Int64[np.ndarray, " rows"]:
        with only_writer(self.folder):
            snapshot = self._now()
            manifest = snapshot.manifest
            ids = manifest.next_id + np.arange(len(vectors))
            if not len(ids):
                return ids
            shards = [*manifest.shards]
            # Small shards at the end are written again together with what is new: there are never more than some
            # dozens of them, and the large ones stay as they are.
            parts, new_ids, tables = [vectors], [ids], [items]
            while shards and shards[-1].rows <= 2 * sum(map(len, new_ids)) and shards[-1].rows < BLOCK:
                last, live = snapshot.shards[len(shards) - 1], snapshot.live[len(shards) - 1]
                last.check()
                kept = np.arange(len(last.ids)) if live is None else np.flatnonzero(live)
                parts.insert(0, last.vectors[kept])
                new_ids.insert(0, last.ids[kept])
                tables.insert(0, last.read(None, kept).drop_columns("id"))
                shards.pop()
            joined = pa.concat_tables(tables, promote_options="default")
            name = f"{manifest.generation + 1:06}-0"
            shard = write_shard(self.folder, name, np.concatenate(new_ids), np.concatenate(parts), joined)
            columns = tuple(dict.fromkeys((*manifest.columns, *joined.column_names)))
            following = manifest.next_id + len(ids)
            self._commit([*shards, shard], snapshot.removed, next_id=following, columns=columns)
        return ids

    def remove(self, where: Where) -> int:
        with only_writer(self.folder):
            snapshot = self._now()
            shards, removed = [], [snapshot.removed]
            conditions, count = check_where(where, snapshot.columns), 0
            for number, (shard, live) in enumerate(zip(snapshot.shards, snapshot.live, strict=True)):
                there = np.ones(len(shard.ids), bool) if live is None else live
                going = there.copy() if not conditions else matching(shard.read([*conditions]), conditions) & there
                count += int(going.sum())
                kept = np.flatnonzero(there & ~going)
                removed.append(shard.ids[going])
                # More than half of the rows removed: the others are written again.
                if len(kept) > len(there) / 2 or (len(kept) and not going.any()):
                    shards.append(shard.shard)
                elif len(kept):
                    shard.check()
                    table = shard.read(None, kept).drop_columns("id")
                    name = f"{snapshot.manifest.generation + 1:06}-{number}"
                    shards.append(write_shard(self.folder, name, shard.ids[kept], shard.vectors[kept], table))
            if count:
                self._commit(shards, np.sort(np.concatenate(removed)))
        return count

    def _commit(self, shards: Sequence[Shard], removed: Int64[np.ndarray, " ids"], **changes: Any) -> None:
        """Put a new state in the place of the old one."""
        manifest = self._snapshot.manifest
        # Shards that were written again have no rows that are removed.
        old = [removed[(removed >= each.first) & (removed <= each.last)] for each in shards if each in manifest.shards]
        removed = np.concatenate([np.empty(0, np.int64), *old])
        entry = manifest.removed
        if not np.array_equal(removed, self._snapshot.removed):
            if entry is not None:
                check_content(self.folder / entry.name, entry)
            path = self.folder / f"removed-{manifest.generation + 1:06}.safetensors"
            entry = write_arrays(path, {"ids": removed}) if len(removed) else None
        following = manifest.following(shards=tuple(shards), removed=entry, removed_rows=len(removed), **changes)
        following.write(self.folder)
        # Those of the state before stay until the next change: a reader may be about to open them.
        named = {file.name for file in (*manifest.files(), *following.files())}
        with write_errors(self.folder):
            for path in self.folder.iterdir():
                if NAME.fullmatch(path.name) and path.name not in named:
                    path.unlink(missing_ok=True)
        self._open(Manifest.read_bytes(self.folder))

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, where: Where | None = None) -> Neighbours:
        snapshot = self._now()
        masks = snapshot.allowed(check_where(where, snapshot.columns))
        search = self._by_index(snapshot)
        return (search or snapshot).search(queries, k, masks)

    def _by_index(self, snapshot: Snapshot) -> "IndexSearch | None":
        """The index for a state, if it has one; read when it is first needed."""
        entry = snapshot.manifest.index
        if entry is None or entry == self._unusable:
            return None
        if self._index is None or self._index.entry != entry:
            try:
                self._index = _indexing().LoadedIndex(snapshot, entry)
            except Damaged as error:
                self._unusable = entry
                warnings.warn(str(Damaged(error.path, error.why, _NO_INDEX)), UserNote, stacklevel=4)
                return None
            self._search = None
        if self._search is None or self._search.snapshot is not snapshot:
            self._search = _indexing().IndexSearch(self._index, snapshot)
        return self._search

    def items(self, ids: Int64[np.ndarray, " rows"]) -> pa.Table:
        return self._snapshot.items(ids)  # the state that was searched

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> Int64[np.ndarray, " some"]:
        snapshot = self._now()
        return snapshot.next_ids(after, count, snapshot.allowed(check_where(where, snapshot.columns)))

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[Float32[np.ndarray, "rows dim"], pa.Table]:
        snapshot = self._now()
        there = snapshot.there(ids)
        return snapshot.vectors_of(there), snapshot.items(there)

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        return self._now().iterate(batch_size)

    def count_labels(self) -> Counter[str | None]:
        return self._now().count_labels()

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        if kind not in self.indexes:
            raise ValueError(f"the kind of index is {kind!r}, but must be one of {', '.join(self.indexes)}.")
        if kind == "exact" and settings:
            raise ValueError(f"exact search has no settings, but {', '.join(settings)} came.")
        with only_writer(self.folder):
            snapshot = self._now()
            manifest, entry = snapshot.manifest, None
            if kind != "exact":
                arrays, chosen, recall = _indexing().build(snapshot, kind, settings)
                file = write_arrays(self.folder / f"index-{manifest.generation + 1:06}-0.safetensors", arrays)
                ids = arrays["ids"]
                entry = IndexEntry(kind, file, len(ids), int(ids.max()), chosen, recall)
            if entry != manifest.index:
                self._commit(manifest.shards, snapshot.removed, index=entry)

    @property
    def index(self) -> dict[str, Any]:
        manifest = self._now().manifest
        entry = manifest.index
        if entry is None:
            return {"kind": "exact", "rows": manifest.rows}
        return {"kind": entry.kind, "rows": entry.rows, "recall@10": entry.recall, **entry.settings}

    def verify(self) -> list[str]:
        while True:
            found = []
            with _noting(found):
                snapshot = self._now()
                for shard in snapshot.shards:
                    with _noting(found):
                        found += shard.problems()
                if (removed := snapshot.manifest.removed) is not None:
                    with _noting(found):
                        check_content(check_size(self.folder, removed), removed)
                if snapshot.manifest.index is not None:
                    with _noting(found, _NO_INDEX):
                        _indexing().LoadedIndex(snapshot, snapshot.manifest.index)
            # What a writer has removed meanwhile is not damaged.
            if not found or Manifest.read_bytes(self.folder) == self._read:
                return found


def _indexing() -> ModuleType:
    """The module of indexes, which imports Faiss, for 0.15 s: many a search does without."""
    from proxemic.retrieval.stores.local import index

    return index


@contextmanager
def _noting(found: list[str], remedy: str | None = None) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        found.append(str(error if remedy is None else Damaged(error.path, error.why, remedy)))
