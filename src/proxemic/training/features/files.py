"""Files of features that are written batch by batch, so that what is done outlives a killed process.

A file holds the float32 numbers of its rows and nothing else; its name says what they are of (`fingerprint`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jaxtyping import Float32
from torch import Tensor

from proxemic.data.vectors import VectorFile
from proxemic.files import write_errors


def find_features(path: Path, shape: tuple[int, int]) -> VectorFile | None:
    """Return the features in a file; None if there is none, `ValueError` if it does not have all rows."""
    if not path.exists():
        return None
    if path.stat().st_size != 4 * shape[0] * shape[1]:
        raise ValueError(f"{path} is damaged.")
    return VectorFile(path, 0, shape, "<f4")


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
        self.rows = 0
        self._file: BinaryIO | None = None

    @contextmanager
    def open(self) -> Iterator["FeatureWriter"]:
        """Write in this block; it gives the file its name once all rows are written."""
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.part.open("ab")
        with self._file:
            self.rows = min(self._file.tell() // (4 * self.shape[1]), self.shape[0])
            self._file.truncate(4 * self.rows * self.shape[1])  # a kill may have cut the last row
            yield self
        if self.rows == self.shape[0]:
            with write_errors(self.path):
                self.part.replace(self.path)

    def append(self, features: Float32[Tensor, "batch dim"]) -> None:
        """Write rows."""
        assert self._file is not None
        with write_errors(self.path):
            self._file.write(features.contiguous().numpy().astype("<f4", copy=False).tobytes())
            self._file.flush()
        self.rows += len(features)
