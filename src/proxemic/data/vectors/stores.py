"""Vector stores: where the vectors of an image set lie until they are needed, in memory or in a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from proxemic.files import readable

FloatType = Literal["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "bfloat16"]
"""Of the numbers in a file: NumPy's names, with the order of bytes; bfloat16 has the lower byte first."""

_BFLOAT16 = "<u2"  # as which NumPy, which knows no bfloat16, reads it


class UnreadableVectorsError(ValueError):
    """A file of vectors that cannot be read, or holds a number that is not finite; its text is the whole sentence."""

    def __str__(self) -> str:
        # A `DataLoader` rebuilds the error of a worker from its traceback, whose last line is this error's own.
        return (super().__str__().strip().splitlines() or [""])[-1].rpartition(f"{type(self).__name__}: ")[2]


@runtime_checkable
class VectorReader(Protocol):
    """What `Vectors` are read from: all rows of one file or table."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def dim(self) -> int:
        """Numbers of each row."""
        ...

    def __len__(self) -> int: ...

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """The rows at these places, in their order; a place may come twice."""
        ...


@dataclass(frozen=True, eq=False)
class VectorArray:
    """Vectors held in memory.

    Args:
        array: One per row.
        name: What messages call it.

    >>> VectorArray(torch.eye(3)).read(np.array([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    array: Float[Tensor, "rows dim"]
    name: str = "the array of vectors"

    @property
    def dim(self) -> int:
        """Numbers of each row."""
        return self.array.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """The rows at these places, in their order."""
        return self.array[torch.from_numpy(places)].float()


class VectorFile:
    """Vectors in a file, of which only the rows of a batch are read.

    The rows are read, not mapped: the memory of the process stays the same however many were read, a truncated file is
    an error and no crash, and the operating system reads ahead where rows follow each other, and only there. What was
    read stays in its cache of files as long as there is room.

    Args:
        path: The file.
        offset: Bytes before the first row.
        shape: Rows, and numbers of each, which follow each other without gaps.
        kind: The type of the numbers.

    Raises:
        UnreadableVectorsError: If the file is shorter; in `read`, if it has been changed, or cannot be read.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "three.bin"
    >>> np.eye(3, dtype="<f2").tofile(path)
    >>> VectorFile(path, 0, (3, 3), "<f2").read(np.array([2, 0, 2])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, int], kind: FloatType) -> None:
        self.path, self.offset, self.kind = path.absolute(), offset, kind
        self._rows, self.dim = shape
        self._dtype = np.dtype(_BFLOAT16 if kind == "bfloat16" else kind)
        status = path.stat()
        self._known = status.st_size, status.st_mtime_ns
        if (needed := offset + len(self) * self._row_bytes) > status.st_size:
            raise UnreadableVectorsError(
                f"{readable(path)} has {status.st_size:,} bytes, but {len(self):,} vectors of {self.dim:,} numbers "
                f"need {needed:,}: write it anew."
            )

    @property
    def name(self) -> str:
        """The path, as messages show it."""
        return readable(self.path)

    @property
    def _row_bytes(self) -> int:
        return self.dim * self._dtype.itemsize

    def __len__(self) -> int:
        return self._rows

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """The rows at these places, in their order; rows that follow each other in the file are read at once."""
        order = places.argsort(kind="stable")
        ascending = places[order]
        content = np.empty((len(places), self._row_bytes), np.uint8)
        starts = np.flatnonzero(np.diff(ascending, prepend=-2) != 1).tolist()
        try:
            # Opened anew: processes that were forked would share the position in a file that is open.
            with self.path.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != self._known:
                    raise OSError("it has been changed since it was opened")
                for first, last in pairwise([*starts, len(places)]):
                    file.seek(self.offset + int(ascending[first]) * self._row_bytes)
                    left = content[first:last].data.cast("B")
                    while left.nbytes:
                        count = file.readinto(left)
                        if not count:
                            raise OSError("it ends too early")
                        left = left[count:]
        except OSError as error:
            why = (error.strerror or "").lower() or str(error)
            raise UnreadableVectorsError(f"{self.name} cannot be read: {why}.") from error
        numbers = np.empty((len(places), self.dim), np.float32)
        numbers[order] = self._as_float32(content.view(self._dtype))
        return torch.from_numpy(numbers)

    def _as_float32(self, numbers: np.ndarray) -> np.ndarray:
        if self.kind == "bfloat16":
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
            return numbers.astype(np.float32)


class Vectors:
    """The vectors of an image set: some rows of a reader, checked as they are read.

    Args:
        reader: Where they are read from.
        rows: The row of each vector; None takes all, in their order.
        names: The name of each row, such as the path of a file that it was made from; None where there are none.
        made_by: What the file says of the model that made them, such as its checksum; None where it says nothing.

    >>> vectors = Vectors(VectorArray(torch.tensor([[0.0], [1.0], [2.0]]))).select([2, 1])
    >>> len(vectors), vectors.dim, vectors.fetch([1, 0]).tolist()
    (2, 1, [[1.0], [2.0]])
    """

    def __init__(
        self,
        reader: VectorReader,
        rows: Int64[np.ndarray, " vectors"] | None = None,
        *,
        names: np.ndarray | None = None,
        made_by: str | None = None,
    ) -> None:
        self.reader = reader
        self.rows = np.arange(len(reader)) if rows is None else rows
        self.made_by = made_by
        self._names = names

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        """Numbers of each vector."""
        return self.reader.dim

    @property
    def names(self) -> tuple[str, ...] | None:
        """The name of each vector, or None where they have none."""
        return None if self._names is None else tuple(self._names[self.rows].tolist())

    def select(self, indices: Sequence[int] | Int64[np.ndarray, " chosen"]) -> "Vectors":
        """Keep the vectors at `indices`, in that order."""
        chosen = self.rows[np.asarray(indices, dtype=np.int64)]
        return Vectors(self.reader, chosen, names=self._names, made_by=self.made_by)

    def fetch(self, indices: Sequence[int], seeds: Sequence[int] | None = None) -> Float32[Tensor, "batch dim"]:
        """Read the vectors of a batch at once; a number that is not finite is an `UnreadableVectorsError`.

        Stores that hold several augmented copies of each vector choose one by the seed of each; this one has no others.
        """
        del seeds
        rows = self.rows[np.asarray(indices, dtype=np.int64)]
        vectors = self.reader.read(rows)
        finite = vectors.isfinite().all(1)
        if not finite.all():
            row = int(rows[int(finite.int().argmin())])
            raise UnreadableVectorsError(
                f"{self.reader.name}, row {row + 1:,}: the vector has a number that is not finite: mend it, or leave "
                "the row out."
            )
        return vectors


@dataclass(frozen=True, eq=False)
class JoinedVectors:
    """The vectors of two sets as the rows of one reader, those of the first before those of the second.

    Args:
        first: The first set.
        second: The second set, of the same dimension; messages name the rows of either as those of its own file.

    >>> first, second = (Vectors(VectorArray(torch.eye(2) * scale)) for scale in (1, 5))
    >>> JoinedVectors(first, second).read(np.array([3, 0]))
    tensor([[0., 5.],
            [1., 0.]])
    """

    first: Vectors
    second: Vectors

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.first.reader.name} and {self.second.reader.name}"

    @property
    def dim(self) -> int:
        """Numbers of each row."""
        return self.first.dim

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """The rows at these places, in their order."""
        of_first = places < len(self.first)
        vectors = torch.empty(len(places), self.dim)
        vectors[torch.from_numpy(of_first)] = self.first.fetch(places[of_first].tolist())
        vectors[torch.from_numpy(~of_first)] = self.second.fetch((places[~of_first] - len(self.first)).tolist())
        return vectors
