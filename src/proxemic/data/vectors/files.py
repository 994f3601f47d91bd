"""Files of vectors, opened so that rows are read as they are needed: .npy, .safetensors and Parquet."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import numpy as np
import platformdirs
import torch
from safetensors import SafetensorError, safe_open

from proxemic.data.embeddings.files import check_embedding_name
from proxemic.data.embeddings.formats import name_of_embeddings, read_npy, rectangles
from proxemic.data.vectors.stores import FloatType, VectorArray, VectorFile, VectorReader
from proxemic.files import readable, write_atomically

_IN_MEMORY = 2**26  # bytes of vectors in Parquet that need no file of their own
_KINDS: dict[str, FloatType] = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "bfloat16"}
_VERSION = 1  # of how Parquet is converted


def open_vectors(path: Path) -> VectorReader:
    """Open a file of vectors by the ending of its name.

    Rows of .npy and .safetensors are read where they lie. Parquet, whose pages are encoded, is held in memory if it is
    small, and otherwise converted once to a .npy file in the user's cache folder.

    Raises:
        ValueError: If the file is missing, damaged, or holds no floats ``[rows, dim]``.
        UserError: If the converted file cannot be written.

    """
    suffix = check_embedding_name(path)
    if not path.is_file():
        raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: give a file of vectors.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: write it anew.")
    if suffix == ".npy":
        return _open_npy(path)
    return _open_safetensors(path) if suffix == ".safetensors" else _open_parquet(path)


def _open_npy(path: Path) -> VectorFile:
    array = read_npy(path)
    kind = array.dtype.str
    _check(path, kind in get_args(FloatType), str(array.dtype), array.shape)
    if not array.flags.c_contiguous:
        raise ValueError(f"{path} is in Fortran order, column by column: save numpy.ascontiguousarray of it.")
    assert isinstance(array, np.memmap)
    return VectorFile(path, array.offset, (array.shape[0], array.shape[1]), cast("FloatType", kind))


def _open_safetensors(path: Path) -> VectorFile:
    try:
        with safe_open(path, framework="pt") as file:  # which checks the header
            name = name_of_embeddings(path, file)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name]
    except (OSError, SafetensorError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is no sound .safetensors file ({why}): write it anew.") from error
    shape = entry["shape"]
    _check(path, entry["dtype"] in _KINDS, entry["dtype"], shape)
    return VectorFile(path, 8 + length + entry["data_offsets"][0], (shape[0], shape[1]), _KINDS[entry["dtype"]])


def _open_parquet(path: Path) -> VectorReader:
    rows, dim, kind, chunks = rectangles(path)
    _check(path, True, kind, (rows, dim))
    if rows * dim * np.dtype(kind).itemsize <= _IN_MEMORY:
        return VectorArray(torch.from_numpy(np.concatenate([*chunks])), readable(path.absolute()))
    status = path.stat()
    known = f"{_VERSION} {status.st_size} {status.st_mtime_ns} ".encode() + os.fsencode(path.absolute())
    folder = platformdirs.user_cache_path("proxemic") / "vectors"
    cache = folder / f"vectors-{hashlib.sha256(known).hexdigest()[:16]}.npy"
    if not cache.exists():
        _write_npy(cache, (rows, dim), kind, chunks)
    return _open_npy(cache)


def _write_npy(path: Path, shape: tuple[int, int], kind: str, chunks: Iterator[np.ndarray]) -> None:
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        header = {"descr": kind, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk).data)


def _check(path: Path, known: bool, kind: str, shape: tuple[int, ...] | list[int]) -> None:
    if not known or len(shape) != 2 or not all(shape):
        raise ValueError(
            f"{path} holds {kind} of shape {[*shape]}, but vectors are float16, bfloat16, float32 or float64, "
            "[rows, dim]: convert them, and scale back those that are quantised."
        )
