"""The files of a gallery's folder: vectors that are mapped into memory, and tables that are read as far as is asked."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64

from proxemic.errors import UserError
from proxemic.files import write_atomically
from proxemic.retrieval.stores.local.arrays import (
    check_content,
    check_size,
    describe,
    map_arrays,
    write_arrays,
)
from proxemic.retrieval.stores.local.manifest import Damaged, Shard

_GROUP = 16_384  # rows of a table that are read at once, where one of them is asked for
_ITEMS = "items"  # the key of the metadata of a file of vectors that has the checksum of the table beside it


def write_shard(folder: Path, name: str, ids: np.ndarray, vectors: np.ndarray, items: pa.Table) -> Shard:
    """Write rows as files that no manifest names yet."""
    table = items.append_column("id", as_numbers(ids))
    path = folder / f"items-{name}.parquet"
    with write_atomically(path) as temporary:
        pq.write_table(table, temporary, row_group_size=_GROUP)
    of_items = describe(path)
    content = {"vectors": vectors, "ids": ids}
    of_vectors = write_arrays(folder / f"vectors-{name}.safetensors", content, {_ITEMS: of_items.sha256})
    return Shard(of_vectors, of_items, len(ids), int(ids[0]), int(ids[-1]))


def as_numbers(numbers: Int64[np.ndarray, " some"]) -> pa.Array:
    """As `pyarrow.array`, which would import pandas where that is installed: half of the time of a search."""
    content = pa.py_buffer(np.ascontiguousarray(numbers, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, content])


class OpenShard:
    """The rows of a shard.

    Args:
        folder: Where it is.
        shard: What it must be: sizes are checked now, checksums by `problems`.
        dim: Numbers of each vector.

    Raises:
        UserError: If a file is missing or is not that of the manifest.
    """

    def __init__(self, folder: Path, shard: Shard, dim: int) -> None:
        self.shard = shard
        self._vectors = check_size(folder, shard.vectors)
        self._items = check_size(folder, shard.items)
        arrays, metadata = map_arrays(self._vectors)
        shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
        if shapes != {"vectors": ("<f4", (shard.rows, dim)), "ids": ("<i8", (shard.rows,))}:
            raise Damaged(self._vectors, f"its arrays are {shapes}")
        if metadata.get(_ITEMS) != shard.items.sha256:
            raise Damaged(self._vectors, "it is the file of other rows")
        self.vectors: Float32[np.ndarray, "rows dim"] = arrays["vectors"]
        self.ids: Int64[np.ndarray, " rows"] = arrays["ids"]
        # Ascending, they are looked up without a check of each place.
        if (self.ids[0], self.ids[-1]) != (shard.first, shard.last) or (self.ids[1:] <= self.ids[:-1]).any():
            raise Damaged(self._vectors, f"its ids do not ascend from {shard.first} to {shard.last}")
        with self._reading():
            # Opened now: the writer may remove it. Threads share it, but none has a place in it.
            self._content = pa.memory_map(str(self._items)).read_buffer()

    def places(self, ids: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " there"]:
        """Where those of some ids are that it has."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return places[self.ids[places] == ids]

    def not_finite(self) -> UserError:
        """What is said where a search shows that vectors are not what a gallery holds."""
        return Damaged(self._vectors, "it has numbers that are not finite, or too large to be squared")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise Damaged(self._items, error) from error

    @cached_property
    def _table(self) -> pq.ParquetFile:
        with self._reading():
            if hashlib.sha256(self._content).hexdigest() != self.shard.items.sha256:
                raise Damaged(self._items, "its checksum is another")
            file = pq.ParquetFile(pa.BufferReader(self._content))
        names, types = file.schema_arrow.names, file.schema_arrow.types
        if file.metadata.num_rows != self.shard.rows or len({*names}) < len(names):
            raise Damaged(self._items, f"it has {file.metadata.num_rows:,} rows of {names}")
        for name, kind in zip(names, types, strict=True):
            if kind != (pa.int64() if name == "id" else pa.string()):
                raise Damaged(self._items, f"its column {name} has values of type {kind}")
        if not {"id", "path", "label"} <= {*names}:
            raise Damaged(self._items, f"its columns are {', '.join(names)}")
        return file

    def read(self, columns: Sequence[str] | None = None, places: Int64[np.ndarray, " some"] | None = None) -> pa.Table:
        """The rows at some places, in the order given, or all; of columns that it lacks, nothing."""
        file = self._table
        names = file.schema_arrow.names
        wanted = names if columns is None else [name for name in columns if name in names]
        with self._reading():
            if places is None:
                return file.read(wanted)
            starts = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))])
            groups, of_place = np.unique(np.searchsorted(starts, places, "right") - 1, return_inverse=True)
            lengths = np.diff(starts)[groups]
            before = np.cumsum([0, *lengths[:-1]]) - starts[groups]
            return file.read_row_groups(groups.tolist(), wanted).take(as_numbers(places + before[of_place]))

    def check(self) -> None:
        """Verify both files, before rows are copied from them: a copy has a checksum of its own.

        Raises:
            UserError: If a file is not what was written.
        """
        check_content(self._vectors, self.shard.vectors)
        check_content(self._items, self.shard.items)

    def problems(self) -> list[str]:
        """What is damaged, one sentence each."""
        files = ((self._vectors, self.shard.vectors), (self._items, self.shard.items))
        found = []
        for path, file in files:
            try:
                check_content(path, file)
            except UserError as error:
                found.append(str(error))
        if found:
            return found
        if not all(np.isfinite(part).all() for part in np.array_split(self.vectors, max(len(self.ids) // 65_536, 1))):
            found.append(f"{self._vectors} has numbers that are not finite.")
        ids = self.read(["id"])["id"].to_numpy()
        if not np.array_equal(ids, self.ids):
            found.append(f"{self._vectors} and {self._items} have other ids.")
        return found
