"""The files of a gallery's folder: vectors that are mapped into memory, and tables that are read as far as is asked."""

import hashlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from jaxtyping import Float32, Int64

from proxemic.errors import UserError
from proxemic.files import write_atomically
from proxemic.retrieval.stores.local.manifest import File, Shard

_GROUP = 16_384  # rows of a table that are read at once, where one of them is asked for
_ITEMS = "items"  # the key of the metadata of a file of vectors that has the checksum of the table beside it


def write_shard(folder: Path, name: str, ids: np.ndarray, vectors: np.ndarray, items: pa.Table) -> Shard:
    """Write rows as files that no manifest names yet."""
    table = items.append_column("id", pa.array(ids))
    path = folder / f"items-{name}.parquet"
    with write_atomically(path) as temporary:
        pq.write_table(table, temporary, row_group_size=_GROUP)
    of_items = describe(path)
    content = {"vectors": np.ascontiguousarray(vectors, "<f4"), "ids": np.ascontiguousarray(ids, "<i8")}
    of_vectors = write_arrays(folder / f"vectors-{name}.safetensors", content, {_ITEMS: of_items.sha256})
    return Shard(of_vectors, of_items, len(ids), int(ids[0]), int(ids[-1]))


def write_arrays(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> File:
    """Write a safetensors file, and say what it must be."""
    with write_atomically(path) as temporary:
        safetensors.numpy.save_file(arrays, temporary, metadata)
    return describe(path)


def describe(path: Path) -> File:
    """What a file that was just written must be."""
    return File(path.name, path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_size(folder: Path, file: File) -> Path:
    """The path of a file; `UserError` where it is missing, or of another size."""
    path = folder / file.name
    try:
        found = path.stat().st_size
    except OSError as error:
        raise damaged(path, "it is missing") from error
    if found != file.bytes:
        raise damaged(path, f"it has {found:,} bytes, but must have {file.bytes:,}")
    return path


def damaged(path: Path, why: str) -> UserError:
    """What is said of a file that is not what was written."""
    return UserError(f"{path} is damaged ({why}): put the folder back from a copy, or make the gallery anew.")


def map_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Map the arrays of a safetensors file into memory, with its metadata; `UserError` where it is damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, 2**20):
                raise ValueError("its header is longer than it may be")
            header = json.loads(file.read(length))
        start, metadata, arrays = 8 + length, dict(header.pop("__metadata__", {})), {}
        for name, entry in header.items():
            kind, shape, (first, last) = _TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
            needed = kind.itemsize * int(np.prod(shape, dtype=object))
            if not (0 <= first <= last == first + needed and start + last <= size and min(shape, default=0) >= 0):
                raise ValueError(f"its array {name} leaves the file")
            # An empty file cannot be mapped.
            mapped = np.memmap(path, kind, "r", start + first, shape) if needed else np.empty(shape, kind)
            arrays[name] = mapped.view(np.ndarray)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, " ".join(str(error).split()) or type(error).__name__) from error
    return arrays, metadata


_TYPES = {
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}


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
            raise damaged(self._vectors, f"its arrays are {shapes}")
        if metadata.get(_ITEMS) != shard.items.sha256:
            raise damaged(self._vectors, "it is the file of other rows")
        self.vectors: Float32[np.ndarray, "rows dim"] = arrays["vectors"]
        self.ids: Int64[np.ndarray, " rows"] = arrays["ids"]

    @cached_property
    def _table(self) -> pq.ParquetFile:
        try:
            file = pq.ParquetFile(self._items)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self._items, " ".join(str(error).split())) from error
        if file.metadata.num_rows != self.shard.rows:
            raise damaged(self._items, f"it has {file.metadata.num_rows:,} rows instead of {self.shard.rows:,}")
        return file

    def read(self, columns: list[str] | None = None, places: Int64[np.ndarray, " some"] | None = None) -> pa.Table:
        """The rows at some places, in the order given, or all; of columns that it lacks, nothing."""
        file = self._table
        names = file.schema_arrow.names
        wanted = names if columns is None else [name for name in columns if name in names]
        try:
            if places is None:
                return file.read(wanted)
            starts = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))])
            groups, of_place = np.unique(np.searchsorted(starts, places, "right") - 1, return_inverse=True)
            lengths = np.diff(starts)[groups]
            before = np.cumsum([0, *lengths[:-1]]) - starts[groups]
            return file.read_row_groups(groups.tolist(), wanted).take(places + before[of_place])
        except (pa.ArrowException, OSError) as error:
            raise damaged(self._items, " ".join(str(error).split())) from error

    def problems(self) -> list[str]:
        """What is damaged, one sentence each."""
        files = ((self._vectors, self.shard.vectors), (self._items, self.shard.items))
        found = [
            f"{path} is not what was written: its checksum is another."
            for path, file in files
            if sha256_of(path) != file.sha256
        ]
        if found:
            return found
        if not np.isfinite(self.vectors).all():
            found.append(f"{self._vectors} has numbers that are not finite.")
        ids = self.read(["id"])["id"].to_numpy()
        if (np.diff(self.ids) <= 0).any() or not np.array_equal(ids, self.ids):
            found.append(f"{self._vectors} and {self._items} have other ids.")
        return found
