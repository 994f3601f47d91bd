"""The files of a gallery's folder: written once, mapped into memory, and never changed."""

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

from proxemic.files import write_errors
from proxemic.retrieval.items import matching
from proxemic.retrieval.stores.local.database import Damaged, File, SegmentEntry, State

_AT_ONCE = 65_536  # rows


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
    """Return the path of a file.

    Args:
        folder: The folder of the gallery.
        file: What the file must be.
        content: Whether to compare the checksum too, and not only the size.

    Raises:
        Damaged: If the file is missing or is not what was written.
    """
    path = folder / file.name
    try:
        size = path.stat().st_size
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
    folder: Path, state: State, ids: Int64[np.ndarray, " rows"], vectors: np.ndarray, items: pa.Table
) -> SegmentEntry:
    """Write rows as files that no transaction names yet."""
    vectors = np.ascontiguousarray(vectors, "<f4")

    def write_items(file: BinaryIO) -> None:
        with pa.ipc.new_file(file, items.schema) as writer:
            writer.write_table(items.combine_chunks())

    def write_vectors(file: BinaryIO) -> None:
        np.lib.format.write_array(file, vectors, allow_pickle=False)

    first, last = int(ids[0]), int(ids[-1])
    has = np.zeros(last - first + 1, bool)
    has[ids - first] = True
    return SegmentEntry(
        first,
        last,
        len(ids),
        None if has.all() else np.packbits(has).tobytes(),
        None,
        write_file(folder, state.new_name("vectors"), write_vectors),
        write_file(folder, state.new_name("items"), write_items),
    )


def as_numbers(numbers: Int64[np.ndarray, " some"]) -> pa.Array:
    """Do as `pyarrow.array`, which would import pandas where that is installed: half of the time of a search."""
    content = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, content])


class Segment:
    """Rows of an entry, mapped into memory, so that they stay readable when a writer removes the files.

    Args:
        folder: The folder of the gallery.
        entry: What the rows must be: sizes are checked now, checksums of columns when they are first read.
        dim: Numbers of each vector.

    Raises:
        Damaged: If a file is missing, or cannot be what the entry says.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, dim: int) -> None:
        self.folder = folder
        vectors, self._items = (check_file(folder, file) for file in (entry.vectors, entry.items))
        try:
            self.vectors: Float32[np.ndarray, "rows dim"] = np.load(vectors, "r", allow_pickle=False).view(np.ndarray)
        except (OSError, ValueError, EOFError) as error:
            raise Damaged(vectors, error) from error
        if self.vectors.dtype != np.dtype("<f4") or self.vectors.shape != (entry.rows, dim):
            raise Damaged(vectors, f"it is not an array of {entry.rows:,} rows of {dim} float32")
        with self._reading():
            self._content = pa.memory_map(str(self._items)).read_buffer()
        self._set(entry)

    def _set(self, entry: SegmentEntry) -> None:
        self.entry = entry
        self.ids = entry.all_ids()
        self.live = entry.live()

    def updated(self, entry: SegmentEntry) -> Self:
        """Return the same files with an entry in which other rows are removed."""
        other = copy(self)
        other._set(entry)
        return other

    def places(self, ids: Int64[np.ndarray, " some"]) -> tuple[Int64[np.ndarray, " own"], Int64[np.ndarray, " own"]]:
        """Return the places of those ids that it has, and where these stand among the asked."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        own = np.flatnonzero(self.ids[places] == ids)
        return places[own], own

    def meeting(self, conditions: dict[str, tuple[str | None, ...]]) -> Bool[np.ndarray, " rows"]:
        """Return which rows are not removed and meet all conditions of `check_where`."""
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
            table.validate(full=True)  # otherwise hostile offsets lead out of its memory
        if len(table) != self.entry.rows:
            raise Damaged(self._items, f"it has {len(table):,} rows")
        return table

    def read(self, columns: Sequence[str] | None = None, places: Int64[np.ndarray, " some"] | None = None) -> pa.Table:
        """Return the rows at some places, in the order given, or all; of columns, those that it has."""
        table = self._table
        if columns is not None:
            table = table.select([name for name in columns if name in table.column_names])
        return table if places is None else table.take(as_numbers(places))

    def check(self) -> None:
        """Verify both files, before rows are copied from them: the copy has a checksum of its own."""
        for file in (self.entry.vectors, self.entry.items):
            check_file(self.folder, file, content=True)

    def not_finite(self) -> Damaged:
        """Return what is raised if vectors are not what a gallery holds."""
        path = self.folder / self.entry.vectors.name
        return Damaged(path, "it has numbers that are not finite, or too large to be squared")

    def verify(self) -> None:
        """Read everything; `Damaged` at what is damaged first."""
        self.check()
        self.read([])
        for first in range(0, len(self.ids), _AT_ONCE):
            if not np.isfinite(self.vectors[first : first + _AT_ONCE]).all():
                raise self.not_finite()
