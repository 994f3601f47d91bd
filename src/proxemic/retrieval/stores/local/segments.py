"""Segments of a gallery's folder: files that are written once, mapped into memory and compared with queries."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, Int64

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_errors
from proxemic.retrieval.items import Where, check_where, matching
from proxemic.retrieval.stores.local.database import Damaged, File, SegmentEntry, State
from proxemic.retrieval.stores.store import (
    FeatureRows,
    GalleryInfo,
    Neighbours,
    QueryRows,
    RowIds,
    VectorRows,
    exact_distances,
    merge,
)

_AT_ONCE = 65_536  # rows that are verified at once


def write_file(folder: Path, name: str, write: Callable[[BinaryIO], object]) -> File:
    """Write a new file and sync it; the folder is synced with the database."""
    with write_errors(folder / name), (folder / name).open("x+b") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
        file.seek(0)
        return File(name, size, hashlib.file_digest(file, "sha256").hexdigest())


def check_file(folder: Path, file: File, *, content: bool = False) -> Path:
    """Return the path of a file; `Damaged` if it is missing or its size, or with `content` its checksum, differs."""
    path = folder / file.name
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise Damaged(path, "it is not a regular file")
        if size != file.bytes:
            raise Damaged(path, f"it has {size:,} bytes, but must have {file.bytes:,}")
        if content:
            with path.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
                    raise Damaged(path, "its checksum is another")
    except OSError as error:
        raise Damaged(path, "it is missing" if isinstance(error, FileNotFoundError) else error) from error
    return path


def write_segment(
    folder: Path,
    state: State,
    ids: RowIds,
    vectors: np.ndarray,
    items: pa.Table,
    features: np.ndarray | None = None,
) -> SegmentEntry:
    """Write rows as files that no transaction names yet."""

    def write_items(file: BinaryIO) -> None:
        with pa.ipc.new_file(file, items.schema) as writer:
            writer.write_table(items.combine_chunks())

    def write_numbers(kind: str, numbers: np.ndarray) -> File:
        numbers = np.ascontiguousarray(numbers, "<f4")
        return write_file(
            folder, state.new_name(kind), lambda file: np.lib.format.write_array(file, numbers, allow_pickle=False)
        )

    first, last = int(ids[0]), int(ids[-1])
    has = np.zeros(last - first + 1, bool)
    has[ids - first] = True
    return SegmentEntry(
        first,
        last,
        len(ids),
        None if has.all() else np.packbits(has).tobytes(),
        None,
        write_numbers("vectors", vectors),
        write_file(folder, state.new_name("items"), write_items),
        None if features is None else write_numbers("features", features),
    )


def as_numbers(numbers: Int64[np.ndarray, " some"]) -> pa.Array:
    """Convert to an Arrow array; `pyarrow.array` would import pandas, which takes half of the time of a search."""
    content = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, content])


def _map(folder: Path, file: File, shape: tuple[int, int]) -> Float32[np.ndarray, "rows numbers"]:
    path = check_file(folder, file)
    try:
        numbers = np.load(path, "r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(path, error) from error
    if numbers.dtype != np.dtype("<f4") or numbers.shape != shape:
        raise Damaged(path, f"it is not an array of {shape[0]:,} rows of {shape[1]} float32")
    return numbers


class Segment:
    """Rows of an entry, mapped into memory, so that they stay readable after a writer has removed the files.

    Opening checks the sizes of the files; the first read of columns checks their checksum.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, info: GalleryInfo) -> None:
        self.folder = folder
        self._items = check_file(folder, entry.items)
        self.vectors: VectorRows = _map(folder, entry.vectors, (entry.rows, info.dim))
        self.features: FeatureRows | None = None
        if entry.features is not None and info.features is not None:
            self.features = _map(folder, entry.features, (entry.rows, info.features))
        with self._reading():
            self._content = pa.memory_map(str(self._items)).read_buffer()
        self._set(entry)

    def _set(self, entry: SegmentEntry) -> None:
        self.entry = entry
        self.ids = entry.all_ids()
        self.live = entry.live()

    def updated(self, entry: SegmentEntry) -> Self:
        """Return this segment with another set of removed rows."""
        other = copy(self)
        other._set(entry)
        return other

    def places(self, ids: Int64[np.ndarray, " some"]) -> tuple[Int64[np.ndarray, " own"], Int64[np.ndarray, " own"]]:
        """Return the places of those ids that the segment has, and their positions in `ids`."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        own = np.flatnonzero(self.ids[places] == ids)
        return places[own], own

    def meeting(self, conditions: dict[str, tuple[str | None, ...]]) -> Bool[np.ndarray, " rows"]:
        """Return a mask of the rows that are not removed and meet the conditions of `check_where`."""
        return self.live & matching(self.read([*conditions]), conditions) if conditions else self.live

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise Damaged(self._items, error) from error

    @cached_property
    def _table(self) -> pa.Table:
        if hashlib.sha256(self._content).hexdigest() != self.entry.items.sha256:
            raise Damaged(self._items, "its checksum is another")
        with self._reading():
            file = pa.ipc.open_file(pa.BufferReader(self._content))
            names = file.schema.names
            is_known = {*file.schema.types} == {pa.string()} and {"path", "label"} <= {*names} and "id" not in names
            if not is_known or len({*names}) < len(names):
                raise Damaged(self._items, f"its columns are {file.schema}")
            table = file.read_all()
            table.validate(full=True)  # hostile offsets would lead to foreign memory
        if len(table) != self.entry.rows:
            raise Damaged(self._items, f"it has {len(table):,} rows")
        return table

    def read(self, columns: Sequence[str] | None = None, places: Int64[np.ndarray, " some"] | None = None) -> pa.Table:
        """Return the rows at the given places in their order, or all rows; missing columns are left out."""
        table = self._table
        if columns is not None:
            table = table.select([name for name in columns if name in table.column_names])
        return table if places is None else table.take(as_numbers(places))

    def check(self) -> None:
        """Verify the files before rows are copied from them, as the copy gets a new checksum."""
        for file in self.entry.files().values():
            check_file(self.folder, file, content=True)

    def not_finite(self) -> Damaged:
        """Return the error to raise if a vector is not finite or too large."""
        path = self.folder / self.entry.vectors.name
        return Damaged(path, "it has numbers that are not finite, or too large to be squared")

    def verify(self) -> None:
        """Read everything; raise `Damaged` at the first damage."""
        self.check()
        self.read([])
        for first in range(0, len(self.ids), _AT_ONCE):
            if not np.isfinite(self.vectors[first : first + _AT_ONCE]).all():
                raise self.not_finite()


Masks = Sequence[Bool[np.ndarray, " rows"]]
"""For each segment, a mask of its rows."""

BLOCK = 65_536  # rows that are copied at once if they are not contiguous
_FEW = 32  # finding this many more rows costs less than copying the allowed rows
_NUMBERS = 2**22  # numbers whose distances are computed exactly at once
_WORTH_FAISS = 2**20  # comparisons for which NumPy takes less time than the import of Faiss


class Snapshot:
    """The opened files of a state, which stay readable when a writer replaces the state."""

    def __init__(self, folder: Path, state: State, before: Sequence[Segment] = ()) -> None:
        self.folder = folder
        self.state = state
        self.columns = ("id", *state.columns)
        opened = {(item.entry.vectors, item.entry.items): item for item in before}
        self.segments: list[Segment] = []
        for entry in state.segments:
            same = opened.get((entry.vectors, entry.items))
            self.segments.append(same.updated(entry) if same else Segment(folder, entry, state.info))
        self.live: Masks = [segment.live for segment in self.segments]
        self.rows = sum(int(np.count_nonzero(mask)) for mask in self.live)
        self._last: tuple[object, Masks] = ((), self.live)  # the last conditions with their masks

    def meeting(self, where: Where | None) -> Masks:
        """Return masks of the rows that are not removed and meet all conditions."""
        conditions = check_where(where, self.columns)
        if not conditions:
            return self.live
        last = self._last
        if last[0] != conditions:
            last = self._last = (conditions, [segment.meeting(conditions) for segment in self.segments])
        return last[1]

    def search(self, queries: QueryRows, k: int, masks: Masks) -> Neighbours:
        """Find the nearest of the masked rows by comparing the queries with each of them."""
        found = []
        for segment, mask in zip(self.segments, masks, strict=True):
            hidden = len(mask) - int(np.count_nonzero(mask))
            if hidden == 0 or hidden <= _FEW < len(mask):
                distances, places = self._nearest(segment, segment.vectors, queries, k + hidden)
                shown = mask[places]
                ids = np.where(shown, segment.ids[places], -1)
                found.append(Neighbours(np.where(shown, distances, np.float32(np.inf)), ids))
                continue
            meant = np.flatnonzero(mask)
            for first in range(0, len(meant), BLOCK):
                rows = meant[first : first + BLOCK]
                distances, places = self._nearest(segment, segment.vectors[rows], queries, k)
                found.append(Neighbours(distances, segment.ids[rows[places]]))
        return merge(found, len(queries), k)

    def _nearest(
        self, segment: Segment, vectors: np.ndarray, queries: np.ndarray, k: int
    ) -> tuple[Float32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        distances, places = nearest(queries, vectors, k, self.state.info.distance)
        if (places < 0).any():
            # Faiss never finds vectors that are not finite or too large to be squared.
            raise segment.not_finite()
        return distances, places

    def live_ids(self) -> Int64[np.ndarray, " live"]:
        """Return the ids of the rows that are not removed, ascending."""
        return np.concatenate([np.empty(0, np.int64), *(segment.ids[segment.live] for segment in self.segments)])

    def vectors_of(self, ids: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return the vectors of rows; zeros for unknown ids."""
        return self._numbers_of(ids, self.state.info.dim, [segment.vectors for segment in self.segments])[0]

    def features_of(self, ids: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some features"] | None:
        """Return the features of rows, None if the gallery stores none; `UserError` for unknown ids."""
        size, parts = self.state.info.features, [segment.features for segment in self.segments]
        if size is None:
            return None
        features, found = self._numbers_of(ids, size, [part for part in parts if part is not None])
        if found < len(ids):
            raise UserError(f"{self.folder} was changed by another process: begin again.")
        return features

    def _numbers_of(self, ids: np.ndarray, size: int, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
        numbers, found = np.zeros((len(ids), size), np.float32), 0
        for segment, part in zip(self.segments, parts, strict=True):
            places, own = segment.places(ids)
            numbers[own] = part[places]
            found += len(own)
        return numbers, found


def nearest(
    queries: QueryRows, vectors: VectorRows, k: int, distance: str
) -> tuple[Float32[np.ndarray, "queries found"], Int64[np.ndarray, "queries found"]]:
    """Return distances and places of the nearest vectors; places are -1 for vectors that are not finite."""
    k = min(k, len(vectors))
    if distance == "cosine" and len(queries) * len(vectors) <= _WORTH_FAISS:
        near = queries @ vectors.T
        places = np.argpartition(-near, k - 1)[:, :k] if k else np.empty((len(queries), 0), np.int64)
        places = np.where(np.isfinite(np.take_along_axis(near, places, 1)), places, -1)
    else:
        with optional_dependency("retrieval"):
            import faiss
        kind = faiss.METRIC_INNER_PRODUCT if distance == "cosine" else faiss.METRIC_L2
        _, places = faiss.knn(queries, vectors, k, metric=kind)
    return distances_at(queries, vectors.__getitem__, places, distance), places


def distances_at(
    queries: QueryRows,
    vectors_at: Callable[[np.ndarray], np.ndarray],
    places: Int64[np.ndarray, "queries found"],
    distance: str,
) -> Float32[np.ndarray, "queries found"]:
    """Compute exact distances to the rows at the given places, for few queries at once to save memory."""
    step = max(1, _NUMBERS // max(places.shape[1] * queries.shape[1], 1))
    parts = [
        exact_distances(queries[first : first + step], vectors_at(places[first : first + step]), distance)
        for first in range(0, len(queries), step)
    ]
    return np.concatenate([np.empty((0, places.shape[1]), np.float32), *parts])
