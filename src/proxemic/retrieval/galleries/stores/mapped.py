"""The mapped files of a gallery's folder: vectors, and perhaps features, to which rows are appended."""

import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from proxemic.files import write_errors
from proxemic.retrieval.galleries.stores.arrays import Arrays
from proxemic.retrieval.galleries.stores.database import LocalState, damaged, numbers_of
from proxemic.retrieval.galleries.stores.store import FeatureRows, GalleryInfo, VectorRows

BLOCK = 8192
"""Rows that share a checksum."""


@dataclass(frozen=True)
class Snapshot:
    """The mapped files of a state, which stay readable when a writer replaces them."""

    state: LocalState
    arrays: Arrays
    features: FeatureRows | None
    paths: Sequence[Path]

    @classmethod
    def read(cls, db: sqlite3.Connection, folder: Path, info: GalleryInfo) -> "Snapshot":
        """Map the files of the present state, in a transaction, during which no writer removes them."""
        state = LocalState.read(db)
        before = np.frombuffer(db.execute("SELECT ids FROM gallery").fetchone()[0], "<i8")
        ids = np.concatenate([before, np.arange(state.next_id - state.places + len(before), state.next_id)])
        paths = [state.file(folder, kind) for kind in ("vectors", "features")]
        arrays = Arrays(info.distance, ids, _map(paths[0], state.places, info.dim))
        if len(gone := numbers_of(db.execute("SELECT id FROM removed"))):
            arrays = replace(arrays, live=~arrays.mask_of(gone))
        features = None if info.features is None else _map(paths[1], state.places, info.features)
        return cls(state, arrays, features, paths)

    def check(self, sums: Mapping[int, Sequence[int]]) -> Iterator[slice]:
        """Yield the places of each block; raise `UserError` if a checksum differs from that of `checksums`."""
        for number, first, end in blocks(0, self.state.places):
            numbers = (self.arrays.vectors, self.features)
            for path, some, before in zip(self.paths, numbers, sums[number], strict=True):
                if some is not None and zlib.crc32(some[first:end].data) != before:
                    raise damaged(path, f"the checksum of its rows {first:,} to {end - 1:,} is another")
            yield slice(first, end)


def _map(path: Path, places: int, size: int) -> np.ndarray:
    if not places:
        return np.empty((0, size), np.float32)
    try:
        return np.memmap(path, "<f4", "r", shape=(places, size)).view(np.ndarray)
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


def append(
    db: sqlite3.Connection, folder: Path, state: LocalState, vectors: VectorRows, features: FeatureRows | None = None
) -> None:
    """Append values to the file of a state, sync them, and update the checksums."""
    kinds = {"vectors": vectors} if features is None else {"vectors": vectors, "features": features}
    numbers = {kind: np.ascontiguousarray(some, "<f4") for kind, some in kinds.items()}
    for kind, some in numbers.items():
        path, start = state.file(folder, kind), some.itemsize * some.shape[1] * state.places
        with write_errors(path), path.open("r+b" if start else "wb") as file:
            if (size := file.seek(0, os.SEEK_END)) < start:
                raise damaged(path, f"it has {size:,} bytes, but must have {start:,} or more")
            file.truncate(start)  # without what a killed writer has left
            file.seek(start)
            file.write(some.data)
            file.flush()
            os.fsync(file.fileno())
    for number, first, end in blocks(state.places, state.places + len(vectors)):
        before = db.execute("SELECT vectors, features FROM blocks WHERE number = ?", (number,)).fetchone() or (0, 0)
        part = slice(first - state.places, end - state.places)
        sums = [zlib.crc32(some[part].data, one) for some, one in zip(numbers.values(), before, strict=False)]
        db.execute("REPLACE INTO blocks VALUES (?, ?, ?)", (number, *sums, *before[len(sums) :]))


def blocks(first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number, the first place and the end of each block, or part of one, between two places."""
    while first < last:
        end = min(last, first - first % BLOCK + BLOCK)
        yield first // BLOCK, first, end
        first = end


def checksums(db: sqlite3.Connection) -> dict[int, tuple[int, ...]]:
    """Return the checksums of all blocks, by their numbers."""
    return {number: tuple(sums) for number, *sums in db.execute("SELECT number, vectors, features FROM blocks")}
