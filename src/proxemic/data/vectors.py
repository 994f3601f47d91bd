"""Vectors instead of images: embeddings from another model, of any modality.

`Vectors` is the store of an `ImageSet` whose inputs are vectors: `VectorFile` reads the vectors of a batch from a file,
`VectorArray` holds all vectors in memory, and `JoinedVectors` reads two sets as one. `VectorAugmentation` augments
training vectors.
"""

import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Int64

from proxemic.data.remote import from_worker
from proxemic.files import readable
from proxemic.lazy import Tensor, torch
from proxemic.ranges import check_fields

FloatType = Literal["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"]
"""Data type of a file: NumPy's name, with the byte order."""

Fetch = Callable[[Sequence[int], Sequence[int]], Float32[Tensor, "batch dim"]]
"""Function that reads a batch by indices, and augments it by seeds."""


class UnreadableVectorsError(ValueError):
    """Raised for vectors that cannot be read or are not finite; the text is a whole sentence."""

    def __str__(self) -> str:
        return from_worker(self, super().__str__())


@runtime_checkable
class VectorReader(Protocol):
    """Reader of the rows of a file or table, for `Vectors`."""

    @property
    def name(self) -> str:
        """The name used in messages."""
        ...

    @property
    def dim(self) -> int:
        """Dimensions of each vector."""
        ...

    def __len__(self) -> int: ...

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """Read the rows at these indices, in that order; an index may come twice."""
        ...


@dataclass(frozen=True, eq=False)
class VectorArray:
    """Vectors held in memory.

    Args:
        array: The vectors ``[N, D]``.
        name: Name in messages.

    >>> VectorArray(torch.eye(3)).read(np.array([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    array: Float[Tensor, "rows dim"]
    name: str = "the array of vectors"

    @property
    def dim(self) -> int:
        return self.array.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        return self.array[torch.from_numpy(places)].float()


class VectorFile:
    """Vectors in a file; only the vectors of a batch are read.

    The rows are read, not mapped. So the memory of the process does not grow with the number of rows read, a truncated
    file is an error and not a crash, and the operating system reads ahead only if rows follow each other. Rows stay in
    its file cache as long as there is room.

    Args:
        path: The file.
        offset: Bytes before the first vector.
        shape: Number of vectors and their dimensions; vectors follow each other without gaps.
        kind: The data type.

    Raises:
        UnreadableVectorsError: If the file is too short; in `read`, if the file has changed or cannot be read.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "three.bin"
    >>> np.eye(3, dtype="<f2").tofile(path)
    >>> VectorFile(path, 0, (3, 3), "<f2").read(np.array([2, 0, 2])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, int], kind: FloatType) -> None:
        self.path, self.offset = path.absolute(), offset
        self.name = readable(self.path)
        self._rows, self.dim = shape
        self._dtype = np.dtype(kind)
        self._row_bytes = self.dim * self._dtype.itemsize
        status = path.stat()
        self._known = status.st_size, status.st_mtime_ns
        if (needed := offset + self._rows * self._row_bytes) > status.st_size:
            raise UnreadableVectorsError(
                f"{self.name} has {status.st_size:,} bytes, but {self._rows:,} vectors of {self.dim:,} dimensions need "
                f"{needed:,}: write it anew."
            )

    def __len__(self) -> int:
        return self._rows

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """Read the rows at these indices, in that order; adjacent rows of the file are read together."""
        order = places.argsort(kind="stable")
        ascending = places[order]
        content = np.empty((len(places), self._row_bytes), np.uint8)
        starts = np.flatnonzero(np.diff(ascending, prepend=-2) != 1).tolist()
        try:
            # Opened again, since forked processes share the position in an open file.
            # A buffer would read more than is needed.
            with io.BufferedReader(self.path.open("rb", buffering=0), self._row_bytes) as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != self._known:
                    raise OSError("it has been changed since it was opened")
                for first, last in pairwise([*starts, len(places)]):
                    file.seek(self.offset + int(ascending[first]) * self._row_bytes)
                    if file.readinto(content[first:last].data.cast("B")) < content[first:last].nbytes:
                        raise OSError("it ends too early")
        except OSError as error:
            why = (error.strerror or "").lower() or str(error)
            raise UnreadableVectorsError(f"{self.name} cannot be read: {why}.") from error
        numbers = np.empty((len(places), self.dim), np.float32)
        with np.errstate(over="ignore"):  # values too large for float32 become infinite and are refused
            numbers[order] = content.view(self._dtype)
        return torch.from_numpy(numbers)


class Vectors:
    """The vectors of an image set: a selection of rows of a reader, checked when they are read.

    Args:
        reader: The reader of the file or table with the vectors.
        rows: The row of each vector; None takes all rows in order.
        names: The name of each row, such as the path of its original file; None if there are no names.
        made_by: The checksum or name of the model that computed the vectors, if the file states it.

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
        """Dimensions of each vector."""
        return self.reader.dim

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the vectors, or None if they have no names."""
        return None if self._names is None else tuple(self._names[self.rows].tolist())

    def select(self, indices: Sequence[int] | Int64[np.ndarray, " chosen"]) -> "Vectors":
        """Keep the vectors at `indices`, in that order."""
        chosen = self.rows[np.asarray(indices, dtype=np.int64)]
        return Vectors(self.reader, chosen, names=self._names, made_by=self.made_by)

    def fetch(self, indices: Sequence[int], seeds: Sequence[int] | None = None) -> Float32[Tensor, "batch dim"]:
        """Read the vectors of a batch; raise `UnreadableVectorsError` if a number is not finite.

        Stores with several augmented copies of each vector choose one by the seed; this store has no copies.
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
    """Two sets of vectors as the rows of one reader, the first set before the second.

    Messages name each row by its own file.
    """

    first: Vectors
    second: Vectors

    @property
    def name(self) -> str:
        return f"{self.first.reader.name} and {self.second.reader.name}"

    @property
    def dim(self) -> int:
        return self.first.dim

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        of_first = places < len(self.first)
        vectors = torch.empty(len(places), self.dim)
        vectors[torch.from_numpy(of_first)] = self.first.fetch(places[of_first].tolist())
        vectors[torch.from_numpy(~of_first)] = self.second.fetch((places[~of_first] - len(self.first)).tolist())
        return vectors


@dataclass(frozen=True)
class VectorAugmentation:
    r"""Augmentation of training vectors, each with a seed of its own; the defaults do nothing.

    $$x' = x + \text{noise} \cdot \lVert x \rVert \, \epsilon / \sqrt{D}$$

    with ε from a standard normal distribution.

    Args:
        noise: Norm of the noise as a fraction of the norm of the vector, 0 or more.

    Raises:
        ValueError: If a value is out of its range.

    >>> from proxemic.data.vectors import VectorArray
    >>> vectors = Vectors(VectorArray(torch.ones(2, 100)))
    >>> noise = VectorAugmentation(noise=0.5).training(vectors)([0, 1], [7, 8]) - 1
    >>> (noise.norm(dim=1) / 10).round(decimals=1).tolist()
    [0.5, 0.5]
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "vectors", noise="[0, inf)")

    def training(self, vectors: Vectors) -> Fetch:
        """Make the function that reads vectors by their indices, and augments each by its seed."""

        def fetch(indices: Sequence[int], seeds: Sequence[int]) -> Float32[Tensor, "batch dim"]:
            batch = vectors.fetch(indices, seeds)
            if self.noise:
                scale = self.noise / math.sqrt(vectors.dim) * batch.norm(dim=1, keepdim=True)
                batch = batch + scale * _normal(seeds, vectors.dim)
            return batch

        return fetch


def _normal(seeds: Sequence[int], dim: int) -> Float32[Tensor, "batch dim"]:
    """Draw a row of standard normal numbers for each seed."""
    generator, noise = torch.Generator(), torch.empty(len(seeds), dim)
    for row, seed in zip(noise, seeds, strict=True):
        row.normal_(generator=generator.manual_seed(seed))
    return noise
