"""Vectors and the metadata of their rows, in .safetensors, .npy and Parquet files."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import platformdirs
import torch
from safetensors import safe_open
from torch import Tensor

from proxemic.data.formats.tables import EMBEDDING_COLUMNS, read_table
from proxemic.data.rows import RowGroups, RowLabels, Rows, join_spellings
from proxemic.data.vectors import FloatType, VectorArray, VectorFile, VectorReader
from proxemic.extras import optional_dependency
from proxemic.files import readable, reading, write_atomically

with optional_dependency("train"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

_IN_MEMORY = 2**26  # bytes; more vectors are converted to a file of their own
_VERSION = 1  # of the conversion of Parquet files
_AT_ONCE = 65_536  # rows read at once
_KINDS: dict[str, FloatType] = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "bfloat16"}
_DTYPES = {"<f4": "F32", "<i8": "I64", "|b1": "BOOL", "|u1": "U8"}
_GROUPS = {"sequences": "sequence_names", "categories": "category_names"}
_TEXTS = ("class_names", "paths", *_GROUPS.values())
_TENSORS = ("labels", "is_query", "is_gallery", *_GROUPS, *_TEXTS)


def check_embedding_name(path: Path) -> str:
    """Return the ending of a name in lower case; raise `ValueError` if it is not a format of embeddings."""
    suffix = path.suffix.lower()
    instead = "use .safetensors, .npy (numpy.save) or .parquet"
    if suffix in (".pt", ".pth", ".pkl", ".pickle", ".ckpt"):
        raise ValueError(f"{path} is a pickle by its name, and opening one may run code: {instead}.")
    if suffix not in (".safetensors", ".npy", ".parquet"):
        raise ValueError(f"{path} ends in {suffix or 'nothing'}, which is no format of embeddings here: {instead}.")
    return suffix


def open_vectors(path: Path, whole: bool = False) -> VectorReader:
    """Open a file of vectors by the ending of its name.

    Rows of .npy and .safetensors are read from the file when needed. Parquet, whose pages are encoded, is read into
    memory if it is small, and otherwise converted once to a .npy file in the user's cache folder. With `whole`, all
    rows are read at once.
    """
    suffix = check_embedding_name(path)
    if not path.is_file():
        raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: give a file of vectors.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: write it anew.")
    if suffix == ".parquet":
        return _open_parquet(path, whole)
    reader = _open_npy(path, whole) if suffix == ".npy" else _open_safetensors(path)
    if not whole or isinstance(reader, VectorArray):
        return reader
    array = torch.empty(len(reader), reader.dim)
    for first in range(0, len(reader), _AT_ONCE):
        array[first : first + _AT_ONCE] = reader.read(np.arange(first, min(first + _AT_ONCE, len(reader))))
    return VectorArray(array, reader.name)


def read_own_columns(path: Path, known: Sequence[str] | None) -> Rows:
    """Read the metadata of the rows of a file of vectors, which `open_vectors` has accepted."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return Rows.of()
    if suffix == ".parquet":
        rows = read_table(path, known)
        return replace(rows, unused=tuple(name for name in rows.unused if name != "embedding"))
    with reading(path, ".safetensors"), safe_open(path, framework="pt") as file:
        parts: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys() if name in _TENSORS}  # noqa: SIM118
    for name in filter(parts.__contains__, _TEXTS):
        try:
            texts = json.loads(parts[name].numpy().tobytes())
        except (ValueError, RecursionError):
            texts = None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path} has a tensor {name} that is not the bytes of a JSON list of texts.")
        parts[name] = tuple(texts)
    if (labels := parts.get("labels")) is not None:
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"{path} has labels of {labels.dtype}, {list(labels.shape)}, but integers [rows] are needed."
            )
        parts["labels"] = labels.long()
        if "class_names" not in parts:  # as in files of other programs
            different, parts["labels"] = labels.unique(return_inverse=True)
            parts["class_names"] = tuple(map(str, different.tolist()))
    try:
        for numbers, names in _GROUPS.items():
            if (numbers in parts) != (names in parts):
                raise ValueError(f"{numbers} and {names} must be given together.")
            if numbers in parts:
                parts[numbers] = RowGroups(parts[numbers].long(), parts.pop(names))
        return join_spellings(RowLabels(**parts).as_rows(), path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a whole file of embeddings; empty for .npy."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        with reading(path, ".safetensors"), safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    if suffix != ".parquet":
        return {}
    with reading(path, "Parquet"):
        content = pyarrow.parquet.read_schema(path).metadata or {}
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in content.items()}


def read_npy(path: Path) -> np.ndarray:
    """Map the array of a .npy file into memory; objects are refused, as they would have to be unpickled."""
    try:
        # Mapping refuses a header that promises more than the file has, before any memory is allocated.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    # What a broken header raises is up to numpy and its parser of literals: ValueError, TypeError, TokenError, ...
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if "object" in why or "pickle" in why:
            why = "it seems to hold objects, that is a pickle, and opening one may run code"
        raise ValueError(f"{path} is no .npy file of numbers ({why}): save it anew with numpy.save.") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} is an archive of arrays (.npz): save one of them with numpy.save.")
    return array


def write_safetensors(
    path: Path, embeddings: Iterable[np.ndarray], shape: tuple[int, int], rows: RowLabels, metadata: dict[str, str]
) -> None:
    """Write tensors as `safetensors` does, but the embeddings chunk by chunk.

    Texts are written as tensors of JSON bytes, since the header is limited to 100 MB.
    """
    parts: dict[str, Any] = dict(vars(rows))
    for numbers, names in _GROUPS.items():
        if parts[numbers] is not None:
            parts[names], parts[numbers] = parts[numbers].names, parts[numbers].numbers
    arrays = {
        name: part.cpu().numpy() if isinstance(part, Tensor) else np.frombuffer(json.dumps(part).encode("ascii"), "u1")
        for name, part in parts.items()
        if part is not None
    }
    described = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    described["embeddings"] = np.dtype("<f4"), shape
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    # The widest numbers first, so that each begins at a multiple of its width; truth values last.
    order = sorted(described, key=lambda name: (-described[name][0].itemsize, described[name][0].kind == "b", name))
    for name in order:
        kind, lengths = described[name]
        start, end = end, end + kind.itemsize * math.prod(lengths)
        header[name] = {"dtype": _DTYPES[kind.str], "shape": [*lengths], "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            for chunk in embeddings if name == "embeddings" else [arrays[name]]:
                file.write(np.ascontiguousarray(chunk).data)


def write_parquet(
    path: Path, embeddings: Iterable[np.ndarray], shape: tuple[int, int], rows: RowLabels, metadata: dict[str, str]
) -> None:
    """Write columns of texts, and the embeddings as lists, one row group per chunk."""
    columns, first, kind = rows.as_rows().columns, 0, pa.list_(pa.float32(), shape[1])
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
            f"{path} holds {kind} of shape {[*shape]}, but vectors are float16, bfloat16, float32 or float64, "
            "[rows, dim]: convert them, and scale back those that are quantised."
        )


def _open_npy(path: Path, whole: bool = False) -> VectorReader:
    array = read_npy(path)
    kind = array.dtype.str
    _check(path, kind in get_args(FloatType), str(array.dtype), array.shape)
    if not array.flags.c_contiguous:
        if not whole:
            raise ValueError(f"{path} is in Fortran order, column by column: save numpy.ascontiguousarray of it.")
        return VectorArray(torch.from_numpy(np.array(array, np.float32, order="C")), readable(path))
    assert isinstance(array, np.memmap)
    return VectorFile(path, array.offset, (array.shape[0], array.shape[1]), cast("FloatType", kind))


def _open_safetensors(path: Path) -> VectorFile:
    with reading(path, ".safetensors"):
        with safe_open(path, framework="pt") as file:  # which checks the header
            names = [*file.keys()]
            tables = [name for name in names if len(file.get_slice(name).get_shape()) == 2]
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    if "embeddings" not in names and len(tables) != 1:
        raise ValueError(
            f"{path} has no tensor embeddings and not one but {len(tables)} of two dimensions: its tensors are "
            f"{', '.join(names[:5]) or 'none'}{', ...' * (len(names) > 5)}."
        )
    entry = header["embeddings" if "embeddings" in names else tables[0]]
    shape = entry["shape"]
    _check(path, entry["dtype"] in _KINDS, entry["dtype"], shape)
    return VectorFile(path, 8 + length + entry["data_offsets"][0], (shape[0], shape[1]), _KINDS[entry["dtype"]])


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
    folder = platformdirs.user_cache_path("proxemic") / "vectors"
    cache = folder / f"vectors-{hashlib.sha256(known).hexdigest()[:16]}.npy"
    if not cache.exists():
        with write_atomically(cache) as temporary:
            write_npy(temporary, chunks, (rows, dim), kind)
    return _open_npy(cache)


def open_parquet_file(path: Path) -> pyarrow.parquet.ParquetFile:
    """Open a Parquet file with buffered reading, so that a large row group need not fit into memory."""
    return pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)


def _parquet_shape(path: Path) -> tuple[int, int, str]:
    """Return the number of rows, their dimension, and the NumPy type of the column `embedding`."""
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
                holds = "no list" if lengths[at] < 0 else f"{lengths[at]} numbers"
                raise ValueError(
                    f"{path}, row {before + at + 1}: embedding is {holds}, but those before it have {dim}."
                )
            numbers = column.flatten()
            if numbers.null_count:
                at = int(numbers.is_null().to_numpy(zero_copy_only=False).argmax()) // dim
                raise ValueError(f"{path}, row {before + at + 1}: embedding lacks a number.")
            yield numbers.to_numpy(zero_copy_only=False).reshape(len(column), dim)
            before += len(batch)
