"""Files of features that are written batch by batch, so that what is done outlives a killed process."""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jaxtyping import Float32
from torch import Tensor

from proxemic.data.vectors import VectorFile
from proxemic.files import write_errors

# Name of the format, rows, numbers of each row, rows that are written, and the checksum of these rows; then the
# checksum of all this. A kill between the writing of rows and of the header leaves rows that the header does not count.
_FACTS = struct.Struct("<16sQQQI")
_CHECKSUM = struct.Struct("<I")
HEADER = _FACTS.size + _CHECKSUM.size
_FORMAT = b"proxemic featur1"
_PIECE = 2**24  # bytes read at once


def find_features(path: Path, shape: tuple[int, int]) -> VectorFile | None:
    """The features in a file that is whole; None where there is none, `ValueError` where it is damaged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        if _read_rows(file, shape) != shape[0]:
            raise ValueError(f"{path} is damaged.")
    return VectorFile(path, HEADER, shape, "<f4")


class FeatureWriter:
    """Writes the rows of a file in their order, after those that an earlier process has written.

    Args:
        path: The file, which is there once all rows are written; until then its name has `.part` at its end.
        shape: Rows, and numbers of each.

    Attributes:
        rows: The rows that are written.
    """

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self.path, self.shape = path, shape
        self.part = path.with_name(f"{path.name}.part")
        self.rows, self._checksum = 0, 0
        self._file: BinaryIO | None = None

    @contextmanager
    def open(self) -> Iterator["FeatureWriter"]:
        """Write in this block; it gives the file its name where all rows are written."""
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.part.open("r+b" if self.part.exists() else "w+b")
        with file:
            with write_errors(self.path):
                self._continue(file)
            self._file = file
            yield self
        if self.rows == self.shape[0]:
            with write_errors(self.path):
                self.part.replace(self.path)

    def _continue(self, file: BinaryIO) -> None:
        rows = _read_rows(file, self.shape)
        if rows is not None:
            file.seek(0)
            self.rows, self._checksum = _FACTS.unpack(file.read(_FACTS.size))[3:]
        file.truncate(HEADER + 4 * self.rows * self.shape[1])
        if rows is None:
            self._write_header(file)

    def append(self, features: Float32[Tensor, "batch dim"]) -> None:
        """Write rows, and only then that they are there."""
        assert self._file is not None
        content = features.contiguous().numpy().astype("<f4", copy=False).tobytes()
        with write_errors(self.path):
            self._file.seek(0, os.SEEK_END)
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.rows += len(features)
            self._checksum = zlib.crc32(content, self._checksum)
            self._write_header(self._file)

    def _write_header(self, file: BinaryIO) -> None:
        facts = _FACTS.pack(_FORMAT, *self.shape, self.rows, self._checksum)
        file.seek(0)
        file.write(facts + _CHECKSUM.pack(zlib.crc32(facts)))
        file.flush()


def _read_rows(file: BinaryIO, shape: tuple[int, int]) -> int | None:
    """The number of rows that a file of this shape counts and holds; None for any other file."""
    facts, checksum = file.read(_FACTS.size), file.read(_CHECKSUM.size)
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.pack(zlib.crc32(facts)) != checksum:
        return None
    kind, *found, rows, expected = _FACTS.unpack(facts)
    if kind != _FORMAT or tuple(found) != shape or rows > shape[0]:
        return None
    left, actual = 4 * rows * shape[1], 0
    while left and (piece := file.read(min(left, _PIECE))):
        left, actual = left - len(piece), zlib.crc32(piece, actual)
    return None if left or actual != expected else rows
