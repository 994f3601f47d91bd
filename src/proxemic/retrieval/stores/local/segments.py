"""The files of a gallery's folder: written once, mapped into memory, and never changed."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from proxemic.errors import UserError
from proxemic.files import write_errors
from proxemic.retrieval.stores.local.database import Damaged, File, SegmentEntry, State


def write_file(folder: Path, name: str, *parts: Any) -> File:
    """Write a new file from buffers of bytes, and sync it; the folder is synced with the database."""
    digest, size = hashlib.sha256(), 0
    with write_errors(folder / name), (folder / name).open("xb") as file:
        for part in parts:
            digest.update(part)
            size += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return File(name, size, digest.hexdigest())


def check_size(folder: Path, file: File) -> Path:
    """Return the path of a file; `UserError` if it is missing, or has another size."""
    path = folder / file.name
    try:
        size = path.stat().st_size
    except OSError as error:
        raise Damaged(path, "it is missing") from error
    if size != file.bytes:
        raise Damaged(path, f"it has {size:,} bytes, but must have {file.bytes:,}")
    return path


def check_content(path: Path, file: File) -> None:
    """Read a file; `UserError` if it is not what was written."""
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise Damaged(path, error.strerror or "it cannot be read") from error
    if digest != file.sha256:
        raise Damaged(path, "its checksum is another")


def write_segment(
    folder: Path, state: State, ids: Int64[np.ndarray, " rows"], vectors: np.ndarray, items: pa.Table
) -> SegmentEntry:
    """Write rows as files that no transaction names yet."""
    vectors = np.ascontiguousarray(vectors, "<f4")
    of_vectors = write_file(folder, state.new_name("vectors"), _npy_header(*vectors.shape), vectors.data)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, items.schema) as writer:
        writer.write_table(items.combine_chunks())
    of_items = write_file(folder, state.new_name("items"), sink.getvalue())
    first, last = int(ids[0]), int(ids[-1])
    has = np.zeros(last - first + 1, bool)
    has[ids - first] = True
    packed = None if has.all() else np.packbits(has).tobytes()
    return SegmentEntry(first, last, len(ids), packed, None, of_vectors, of_items)


def _npy_header(rows: int, dim: int) -> bytes:
    """Return the only header that a `.npy` file of a gallery may have, so that no parser meets a stranger's.

    >>> _npy_header(5, 8)[10:70]
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 8), } "
    """
    described = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dim}), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + f"{described:117}\n".encode()


def as_numbers(numbers: Int64[np.ndarray, " some"]) -> pa.Array:
    """Do as `pyarrow.array`, which would import pandas where that is installed: half of the time of a search."""
    content = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, content])


class Segment:
    """Rows of an entry, mapped into memory, so that they stay readable when a writer removes the files.

    Args:
        folder: Of the gallery.
        entry: What the rows must be: sizes are checked now, checksums of columns when they are first read.
        dim: Numbers of each vector.

    Raises:
        UserError: If a file is missing, or cannot be what the entry says.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, dim: int) -> None:
        self._vectors, self._items = (check_size(folder, file) for file in (entry.vectors, entry.items))
        self.vectors = self._map_vectors((entry.rows, dim))
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

    def _map_vectors(self, shape: tuple[int, int]) -> Float32[np.ndarray, "rows dim"]:
        header = _npy_header(*shape)
        try:
            with self._vectors.open("rb") as file:
                if file.read(len(header)) != header:
                    raise ValueError(f"it does not begin as an array of {shape[0]:,} rows of {shape[1]} float32")
            return np.memmap(self._vectors, "<f4", "r", len(header), shape).view(np.ndarray)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            raise Damaged(self._vectors, error) from error

    @property
    def live_places(self) -> Int64[np.ndarray, " live"]:
        """The places of the rows that are not removed."""
        return np.arange(len(self.ids)) if self.live is None else np.flatnonzero(self.live)

    def places(self, ids: Int64[np.ndarray, " some"]) -> tuple[Int64[np.ndarray, " own"], Int64[np.ndarray, " own"]]:
        """Return the places of those ids that it has, and where these stand among the asked."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        own = np.flatnonzero(self.ids[places] == ids)
        return places[own], own

    def not_finite(self) -> UserError:
        """Return what is raised if a search shows that vectors are not what a gallery holds."""
        return Damaged(self._vectors, "it has numbers that are not finite, or too large to be squared")

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
            for name, kind in zip(names, file.schema.types, strict=True):
                if kind != pa.string():
                    raise Damaged(self._items, f"its column {name} has values of type {kind}")
            if len({*names}) < len(names) or not {"path", "label"} <= {*names} or "id" in names:
                raise Damaged(self._items, f"its columns are {', '.join(names)}")
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
        """Verify both files, before rows are copied from them: the copy has a checksum of its own.

        Raises:
            UserError: If a file is not what was written.
        """
        check_content(self._vectors, self.entry.vectors)
        check_content(self._items, self.entry.items)

    def verify(self) -> None:
        """Read everything; `UserError` at what is damaged first."""
        self.check()
        self.read([])
        for part in np.array_split(self.vectors, max(len(self.ids) // 65_536, 1)):
            if not np.isfinite(part).all():
                raise self.not_finite()
