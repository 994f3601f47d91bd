"""Vectors in .npy and Parquet files."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from proxemic.caches import cache_folder
from proxemic.data.formats.tables import EMBEDDING_COLUMNS
from proxemic.data.vectors import FloatType, VectorArray, VectorFile, VectorReader
from proxemic.extras import optional_dependency
from proxemic.files import readable, reading, write_atomically
from proxemic.lazy import torch

with optional_dependency("train"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

_IN_MEMORY = 2**26  # bytes; more vectors are converted to a file of their own
_VERSION = 1  # of the conversion of Parquet files


def check_embedding_name(path: Path) -> str:
    """Return the ending of a name in lower case; raise `ValueError` if it is not a format of embeddings."""
    suffix = path.suffix.lower()
    instead = "use .parquet, or .npy (numpy.save) with a table"
    if suffix in (".pt", ".pth", ".pkl", ".pickle", ".ckpt"):
        raise ValueError(f"{path} is a pickle by its name, and opening a pickle may run code: {instead}.")
    if suffix not in (".parquet", ".npy"):
        raise ValueError(f"{path} ends in {suffix or 'nothing'}, which is not a format of embeddings here: {instead}.")
    return suffix


def open_vectors(path: Path, whole: bool = False) -> VectorReader:
    """Open a file of vectors by the ending of its name.

    Vectors of .npy are read from the file when needed. Parquet, whose pages are encoded, is read into memory if it is
    small, and otherwise converted once to a .npy file in the user's cache folder. With `whole`, all vectors are read at
    once.
    """
    suffix = check_embedding_name(path)
    if not path.is_file():
        raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: give a file of vectors.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: write it anew.")
    return _open_parquet(path, whole) if suffix == ".parquet" else _open_npy(path, whole)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a Parquet file, or of the JSON file next to a .npy file."""
    if path.suffix.lower() == ".npy":
        content = read_description(path.with_suffix(".json"))
        return {key: value for key, value in (content or {}).items() if isinstance(value, str)}
    with reading(path, "Parquet"):
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}


def read_description(path: Path) -> dict[str, Any] | None:
    """Read the JSON file next to a .npy file; return {} if it is missing, None if it is not an object."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def write_parquet(
    path: Path, embeddings: Iterable[np.ndarray], shape: tuple[int, int], columns: pa.Table, metadata: dict[str, str]
) -> None:
    """Write columns of texts, and the embeddings as lists, one row group per chunk."""
    first, kind = 0, pa.list_(pa.float32(), shape[1])
    for name in {"is_query", "is_gallery"} & {*columns.column_names}:
        columns = columns.set_column(columns.column_names.index(name), name, columns[name].cast(pa.bool_()))
    schema = columns.schema.append(pa.field("embedding", kind)).with_metadata(metadata or None)
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        for chunk in embeddings:
            numbers = pa.FixedSizeListArray.from_arrays(pa.array(chunk.reshape(-1)), type=kind)
            part = [columns.column(name).slice(first, len(chunk)) for name in columns.column_names]
            file.write_table(pa.table([*part, numbers], schema))
            first += len(chunk)


def write_npy(path: Path, embeddings: Iterable[np.ndarray], shape: tuple[int, int], kind: str = "<f4") -> None:
    """Write the embeddings, without metadata."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
        for chunk in embeddings:
            file.write(np.ascontiguousarray(chunk).data)


def _check(path: Path, known: bool, kind: str, shape: tuple[int, ...] | list[int]) -> None:
    if not known or len(shape) != 2 or not all(shape):
        raise ValueError(
            f"{path} holds {kind} of shape {[*shape]}, but vectors are float16, float32 or float64, "
            "[rows, dim]: convert them; scale back quantised vectors."
        )


def _map_npy(path: Path) -> np.ndarray:
    """Map the array of a .npy file into memory; objects are refused, as they would have to be unpickled."""
    try:
        # Mapping refuses a header that promises more than the file has, before any memory is allocated.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    # What a broken header raises is up to numpy and its parser of literals: ValueError, TypeError, TokenError, ...
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if "object" in why or "pickle" in why:
            why = "it seems to hold objects, that is a pickle, and opening a pickle may run code"
        raise ValueError(f"{path} is not a .npy file of numbers ({why}): save it anew with numpy.save.") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} is an archive of arrays (.npz): save one of them with numpy.save.")
    return array


def _open_npy(path: Path, whole: bool = False) -> VectorReader:
    array = _map_npy(path)
    kind = array.dtype.str
    _check(path, kind in get_args(FloatType), str(array.dtype), array.shape)
    if whole:
        with np.errstate(over="ignore"):  # values too large for float32 become infinite and are refused
            return VectorArray(torch.from_numpy(np.array(array, np.float32, order="C")), readable(path.absolute()))
    if not array.flags.c_contiguous:
        raise ValueError(f"{path} is in Fortran order, column by column: save numpy.ascontiguousarray of it.")
    assert isinstance(array, np.memmap)
    return VectorFile(path, array.offset, (array.shape[0], array.shape[1]), cast("FloatType", kind))


def _open_parquet(path: Path, whole: bool) -> VectorReader:
    rows, dim, kind = _parquet_shape(path)
    _check(path, True, kind, (rows, dim))
    chunks = _parquet_chunks(path, dim)
    if whole or rows * dim * np.dtype(kind).itemsize <= _IN_MEMORY:
        with np.errstate(over="ignore"):  # values too large for float32 become infinite and are refused
            parts = [chunk.astype(np.float32) if whole else chunk for chunk in chunks]
        return VectorArray(torch.from_numpy(np.concatenate(parts)), readable(path.absolute()))
    status = path.stat()
    known = f"{_VERSION} {status.st_size} {status.st_mtime_ns} ".encode() + os.fsencode(path.absolute())
    folder = cache_folder("arrays")
    cache = folder / f"vectors-{hashlib.sha256(known).hexdigest()[:16]}.npy"
    if not cache.exists():
        with write_atomically(cache) as temporary:
            write_npy(temporary, chunks, (rows, dim), kind)
    return _open_npy(cache)


def open_parquet_file(path: Path) -> pyarrow.parquet.ParquetFile:
    """Open a Parquet file with buffered reading, so that a large row group need not fit into memory."""
    return pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)


def _parquet_shape(path: Path) -> tuple[int, int, str]:
    """Return the number of embeddings, their dimensions, and the NumPy type of the column `embedding`."""
    with reading(path, "Parquet"), open_parquet_file(path) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        if "embedding" not in names:
            raise ValueError(f"{path} has no column embedding: its columns are {', '.join(names) or 'none'}.")
        if twice := next((name for name in ("embedding", *EMBEDDING_COLUMNS) if names.count(name) > 1), None):
            raise ValueError(f"{path} has the column {twice} more than once: keep one of them.")
        kind: Any = file.schema_arrow.field("embedding").type
        is_list = any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
        if not is_list or not pa.types.is_floating(kind.value_type):
            raise ValueError(f"{path} has {kind} in its column embedding, but it must hold lists of floats.")
        first = next(file.iter_batches(batch_size=1, columns=["embedding"]), None)
    dim = 0 if first is None else len(first.column(0)[0].as_py() or ())
    return rows, dim, np.dtype(kind.value_type.to_pandas_dtype()).str


def _parquet_chunks(path: Path, dim: int) -> Iterator[np.ndarray]:
    before = 0
    with reading(path, "Parquet"), open_parquet_file(path) as file:
        for batch in file.iter_batches(batch_size=8192, columns=["embedding"]):
            column: Any = batch.column(0)
            lengths = pc.call_function("list_value_length", [column]).fill_null(-1).to_numpy()
            if (lengths != dim).any():
                at = int((lengths != dim).argmax())
                holds = "not a list" if lengths[at] < 0 else f"of {lengths[at]} dimensions"
                raise ValueError(
                    f"{path}, row {before + at + 1}: embedding is {holds}, but those before have {dim} dimensions."
                )
            numbers = column.flatten()
            if numbers.null_count:
                at = int(numbers.is_null().to_numpy(zero_copy_only=False).argmax()) // dim
                raise ValueError(f"{path}, row {before + at + 1}: embedding lacks a number.")
            yield numbers.to_numpy(zero_copy_only=False).reshape(len(column), dim)
            before += len(batch)
