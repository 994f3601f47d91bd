"""A gallery in a folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int64
from pyarrow.compute import is_in  # pyright: ignore[reportAttributeAccessIssue]

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_atomically, write_errors
from proxemic.retrieval.items import Where, check_where, matching
from proxemic.retrieval.stores.distances import exact_distances, merge
from proxemic.retrieval.stores.local.manifest import MANIFEST, Manifest, Shard
from proxemic.retrieval.stores.local.shards import OpenShard, check_size, damaged, describe, sha256_of, write_shard
from proxemic.retrieval.stores.local.writing import LOCK, WRITER, only_writer
from proxemic.retrieval.stores.store import GalleryInfo, IndexKind, Neighbours, Store

with optional_dependency("retrieval"):
    import faiss

_BLOCK = 65_536  # rows of which those that meet conditions are copied at once


class LocalStore(Store):
    """A gallery in a folder: `manifest.json` names shards of vectors (safetensors) and of tables (Parquet).

    A change writes new files and then replaces the manifest, so that a process that is killed leaves the gallery as it
    was, or as it was to be; readers see one state or the other. What no manifest names any more is removed by the
    change after the next, as a reader may just be opening it.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open(Manifest.read(folder))
        super().__init__(str(folder), self._manifest.info)

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        folder = Path(address)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with only_writer(folder):
            if (folder / MANIFEST).exists():
                raise UserError(f"{folder} holds a gallery: add to it, choose another name, or delete it.")
            if any(path.name not in (LOCK, WRITER) for path in folder.iterdir()):
                raise UserError(f"{folder} is not empty: choose a new or an empty folder for a gallery.")
            Manifest(info).write(folder)
        return cls(folder)

    @classmethod
    def open(cls, address: str) -> Self:
        return cls(Path(address))

    def _open(self, manifest: Manifest) -> None:
        try:
            shards = [OpenShard(self.folder, shard, manifest.info.dim) for shard in manifest.shards]
            removed = self._read_removed(manifest)
        except UserError:
            # A writer may have replaced the manifest since it was read, and removed what this one names.
            now = Manifest.read(self.folder)
            if now.generation == manifest.generation:
                raise
            self._open(now)
            return
        self._manifest, self._shards, self._removed = manifest, shards, removed

    def _read_removed(self, manifest: Manifest) -> Int64[np.ndarray, " removed"]:
        if manifest.removed is None:
            return np.empty(0, np.int64)
        path = check_size(self.folder, manifest.removed)
        if sha256_of(path) != manifest.removed.sha256:
            raise damaged(path, "its checksum is another")
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise damaged(path, str(error)) from error

    def _refresh(self) -> None:
        """See what other processes have changed."""
        now = Manifest.read(self.folder)
        if now != self._manifest:
            self._open(now)

    def __len__(self) -> int:
        self._refresh()
        return self._manifest.rows

    @property
    def columns(self) -> tuple[str, ...]:
        self._refresh()
        return self._columns

    @property
    def _columns(self) -> tuple[str, ...]:
        return ("id", *self._manifest.columns)

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        self._refresh()
        wanted, known = pa.array(paths, pa.string()), set()
        for shard in self._shards:
            column = shard.read(["path"])["path"]
            there = is_in(column, value_set=wanted).to_numpy() & ~self._is_removed(shard)
            known.update(column.filter(pa.array(there)).to_pylist())
        return known

    def _is_removed(self, shard: OpenShard) -> Bool[np.ndarray, " rows"]:
        first, last = np.searchsorted(self._removed, [shard.shard.first, shard.shard.last + 1])
        mask = np.zeros(len(shard.ids), bool)
        mask[np.searchsorted(shard.ids, self._removed[first:last])] = True
        return mask

    def add(self, vectors: Float32[np.ndarray, "rows dim"], items: pa.Table) -> Int64[np.ndarray, " rows"]:
        with only_writer(self.folder):
            self._refresh()
            manifest = self._manifest
            ids = manifest.next_id + np.arange(len(vectors))
            if not len(ids):
                return ids
            shards = [*manifest.shards]
            # Small shards at the end are written again together with what is new: there are never more than some
            # dozens of them, and the large ones stay as they are.
            parts, new_ids, tables = [vectors], [ids], [items]
            while shards and shards[-1].rows <= 2 * sum(map(len, new_ids)) and shards[-1].rows < _BLOCK:
                last = self._shards[len(shards) - 1]
                kept = np.flatnonzero(~self._is_removed(last))
                parts.insert(0, last.vectors[kept])
                new_ids.insert(0, last.ids[kept])
                tables.insert(0, last.read(None, kept).drop_columns("id"))
                shards.pop()
            joined = pa.concat_tables(tables, promote_options="default")
            name = f"{manifest.generation + 1:06}-0"
            shard = write_shard(self.folder, name, np.concatenate(new_ids), np.concatenate(parts), joined)
            columns = tuple(dict.fromkeys((*manifest.columns, *joined.column_names)))
            following = manifest.next_id + len(ids)
            self._commit(manifest, [*shards, shard], self._removed, next_id=following, columns=columns)
        return ids

    def remove(self, where: Where) -> int:
        with only_writer(self.folder):
            self._refresh()
            manifest, shards, removed = self._manifest, [], [self._removed]
            conditions, count = check_where(where, self._columns), 0
            for number, shard in enumerate(self._shards):
                gone = self._is_removed(shard)
                going = matching(shard.read(list(conditions)) if conditions else shard.read(["id"]), conditions) & ~gone
                count += int(going.sum())
                kept = np.flatnonzero(~(gone | going))
                removed.append(shard.ids[going])
                if len(kept) > len(gone) / 2 or (not going.any() and len(kept)):
                    shards.append(shard.shard)
                elif len(kept):
                    table = shard.read(None, kept).drop_columns("id")
                    name = f"{manifest.generation + 1:06}-{number}"
                    shards.append(write_shard(self.folder, name, shard.ids[kept], shard.vectors[kept], table))
            if count:
                self._commit(manifest, shards, np.sort(np.concatenate(removed)))
        return count

    def _commit(
        self, manifest: Manifest, shards: Sequence[Shard], removed: Int64[np.ndarray, " ids"], **changes: Any
    ) -> None:
        """Put a new state in the place of the old one."""
        before = manifest.files()
        still = [
            removed[(removed >= shard.first) & (removed <= shard.last)]
            for shard, old in ((shard, shard in manifest.shards) for shard in shards)
            if old
        ]
        removed = np.concatenate(still) if still else np.empty(0, np.int64)
        entry = None
        if len(removed):
            path = self.folder / f"removed-{manifest.generation + 1:06}.npy"
            with write_atomically(path) as temporary, temporary.open("wb") as file:
                np.save(file, removed, allow_pickle=False)
            entry = describe(path)
        following = manifest.following(shards=tuple(shards), removed=entry, removed_rows=len(removed), **changes)
        following.write(self.folder)
        # Those of the state before stay until the next change: a reader may be about to open them.
        named = {file.name for file in (*before, *following.files())} | {MANIFEST, LOCK, WRITER}
        for path in self.folder.iterdir():
            if path.name not in named and path.is_file():
                path.unlink(missing_ok=True)
        self._open(following)

    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, where: Where | None = None) -> Neighbours:
        self._refresh()
        conditions = check_where(where, self._columns)
        found = [self._search_shard(shard, queries, k, conditions) for shard in self._shards]
        return merge(found, len(queries), k)

    def _search_shard(
        self, shard: OpenShard, queries: np.ndarray, k: int, conditions: dict[str, tuple[str | None, ...]]
    ) -> Neighbours:
        allowed = ~self._is_removed(shard)
        if conditions:
            allowed &= matching(shard.read(list(conditions)), conditions)
        if allowed.all():
            return nearest(queries, shard.vectors, shard.ids, k, self.info.distance)
        found = []
        for first in range(0, len(allowed), _BLOCK):
            places = first + np.flatnonzero(allowed[first : first + _BLOCK])
            if len(places):
                found.append(nearest(queries, shard.vectors[places], shard.ids[places], k, self.info.distance))
        return merge(found, len(queries), k)

    def items(self, ids: Int64[np.ndarray, " rows"]) -> pa.Table:
        parts, order = [], []
        for shard in self._shards:
            asked = np.flatnonzero((ids >= shard.shard.first) & (ids <= shard.shard.last))
            if len(asked):
                parts.append(shard.read(None, np.searchsorted(shard.ids, ids[asked])))
                order.append(asked)
        columns = list(self._columns)
        if not parts:
            return pa.table({name: pa.array([], pa.int64() if name == "id" else pa.string()) for name in columns})
        joined = self._whole(pa.concat_tables(parts, promote_options="default"))
        return joined.take(np.argsort(np.concatenate(order))).select(columns)

    def _whole(self, table: pa.Table) -> pa.Table:
        for name in self._columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), pa.string()))
        return table.select(list(self._columns))

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        self._refresh()
        for shard, gone in [(shard, self._is_removed(shard)) for shard in self._shards]:
            kept = np.flatnonzero(~gone)
            for first in range(0, len(kept), batch_size):
                places = kept[first : first + batch_size]
                yield shard.vectors[places], self._whole(shard.read(None, places))

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        if kind == "exact":
            with only_writer(self.folder):
                self._refresh()
                if self._manifest.index is not None:
                    self._commit(self._manifest, [*self._manifest.shards], self._removed, index=None)
            return
        raise ValueError(f"an index is {kind!r}, but a folder has one of {', '.join(self.indexes)}.")

    @property
    def index(self) -> dict[str, Any]:
        entry = self._manifest.index
        return {"kind": "exact", "rows": len(self)} if entry is None else {"kind": entry.kind, "rows": entry.rows}

    def verify(self) -> list[str]:
        self._refresh()
        return [problem for shard in self._shards for problem in shard.problems()]


def nearest(
    queries: Float32[np.ndarray, "queries dim"],
    vectors: Float32[np.ndarray, "rows dim"],
    ids: Int64[np.ndarray, " rows"],
    k: int,
    distance: str,
) -> Neighbours:
    """The nearest of all vectors, by Faiss."""
    kind = faiss.METRIC_INNER_PRODUCT if distance == "cosine" else faiss.METRIC_L2
    _, places = faiss.knn(queries, vectors, min(k, len(vectors)), metric=kind)
    return Neighbours(exact_distances(queries, vectors[places], distance), ids[places])
