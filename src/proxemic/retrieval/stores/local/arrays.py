"""Files of arrays in a gallery's folder, mapped into memory, and what every file there must be."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from proxemic.files import write_atomically
from proxemic.retrieval.stores.local.manifest import Damaged, File

_TYPES = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "U8": np.dtype("u1")}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_LONGEST = 2**20  # bytes of a header


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> File:
    """Write a safetensors file, and say what it must be.

    It is written here, as the library's files can be read by their owner alone, and it says nothing of full disks.
    """
    # The largest numbers first, so that each array lies at a multiple of what its numbers take.
    parts = sorted(((name, np.ascontiguousarray(array)) for name, array in arrays.items()), key=_descending)
    header: dict[str, Any] = {"__metadata__": {**metadata}} if metadata else {}
    end = 0
    for name, array in parts:
        header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        for part in (
            len(text).to_bytes(8, "little"),
            text,
            *(array.reshape(-1).view(np.uint8).data for _, array in parts),
        ):
            digest.update(part)
            file.write(part)
    return File(path.name, 8 + len(text) + end, digest.hexdigest())


def _descending(part: tuple[str, np.ndarray]) -> tuple[int, str]:
    return -part[1].itemsize, part[0]


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
        raise Damaged(path, "it is missing") from error
    if found != file.bytes:
        raise Damaged(path, f"it has {found:,} bytes, but must have {file.bytes:,}")
    return path


def check_content(path: Path, file: File) -> None:
    """Read a file; `UserError` where it is not that which was written."""
    try:
        same = sha256_of(path) == file.sha256
    except OSError as error:
        raise Damaged(path, error.strerror or "it cannot be read") from error
    if not same:
        raise Damaged(path, "its checksum is another")


def map_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Map the arrays of a safetensors file into memory, with its metadata; `UserError` where it is damaged."""
    try:
        # Mapped once, it keeps what it holds when the writer removes it.
        whole = np.memmap(path, np.uint8, "r").view(np.ndarray)
        start = 8 + int.from_bytes(whole[:8].tobytes(), "little")
        if start > min(len(whole), _LONGEST):
            raise ValueError("its header is longer than it may be")
        header = json.loads(whole[8:start].tobytes())
        metadata = dict(header.pop("__metadata__", {}))
        return {name: _array(whole[start:], name, entry) for name, entry in header.items()}, metadata
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(path, error) from error


def _array(content: np.ndarray, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    kind, shape, (first, last) = _TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    needed = kind.itemsize * int(np.prod(shape, dtype=object))
    if not (0 <= first <= last == first + needed and last <= len(content) and min(shape, default=0) >= 0):
        raise ValueError(f"its array {name[:40]} leaves the file")
    array = content[first:last].view(kind).reshape(shape)
    if not array.flags.aligned:
        raise ValueError(f"its array {name[:40]} lies at an odd place")
    return array
