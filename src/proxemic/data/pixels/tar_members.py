"""The files in a tar that is not compressed: where each begins, from the headers alone; nothing is unpacked."""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = 512
# Name, size, checksum, type, magic and prefix; between them mode, owner, time, link and device, which nobody needs.
_HEADER = struct.Struct("100s24x12s12x8sc100x6s82x155s12x")
_CHECKSUM = slice(148, 156)
_FILES, _NO_CONTENT = b"0\x007", b"123456"  # types; links, devices, folders and pipes have no content
_LONG_NAME, _LONG_LINK, _FACTS, _ALL_FACTS, _SPARSE = b"L", b"K", b"x", b"g", b"S"
_LONGEST_FACTS = 2**16  # bytes of a long name, or of the facts of POSIX about one file
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """A regular file in a tar; its name is what its maker called it and never a path to write to."""

    name: str
    offset: int
    size: int


def read_members(path: Path) -> Iterator[tuple[Member, memoryview]]:
    """Give the regular files of a tar in their order, each with its content.

    The content is valid until the next file is asked for. GNU's and POSIX's long names and sizes are read; links and
    folders are passed over.

    Raises:
        ValueError: If the file is compressed, damaged, cut short, or no tar.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_BLOCK)
        for magic, name in _COMPRESSED.items():
            if head.startswith(magic):
                raise ValueError(f"{path} is compressed by {name}, in which no image can be found: unpack it to a .tar")
        if len(head) < _BLOCK:
            raise ValueError(f"{path} is no tar, or cut short: it has {len(head)} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            yield from _members(path, view)


def _members(path: Path, view: memoryview) -> Iterator[tuple[Member, memoryview]]:
    place, end = 0, len(view)
    name: str | None = None
    size: int | None = None
    while True:
        if place + _BLOCK > end:
            raise ValueError(f"{path} is cut short: it lacks the mark of a tar's end after byte {end:,}; get it again")
        block = bytes(view[place : place + _BLOCK])
        short, octal, checksum, kind, magic, prefix = _HEADER.unpack(block)
        if not short[0] and not any(block):
            return
        try:
            if sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ") != _number(checksum):
                raise ValueError("its checksum is wrong")
            if (length := _number(octal)) < 0:
                raise ValueError("its size is negative")
        except ValueError as error:
            raise ValueError(f"{path} is no tar, or damaged: the header at byte {place:,} is none ({error})") from error
        if kind in _NO_CONTENT:
            length = 0
        elif size is not None:
            length = size
        start = place + _BLOCK
        if start + length > end:
            raise ValueError(
                f"{path} is cut short or damaged: the file at byte {place:,} has {length:,} bytes, but {end - start:,} "
                "are left; get it again"
            )
        place = start + -(-length // _BLOCK) * _BLOCK
        if kind in (_LONG_NAME, _LONG_LINK, _FACTS, _ALL_FACTS):
            if kind in (_LONG_NAME, _FACTS):
                if length > _LONGEST_FACTS:
                    raise ValueError(f"{path} has a name of {length:,} bytes, but at most {_LONGEST_FACTS:,} are read")
                said = bytes(view[start : start + length])
                name, size = (_text(said), size) if kind == _LONG_NAME else _facts(path, said, name)
            continue
        if kind == _SPARSE:
            raise ValueError(f"{path} has a sparse file, as no images are: write it anew")
        if kind not in _NO_CONTENT:
            if name is None:
                folder = _text(prefix) if magic == b"ustar\0" else ""
                name = f"{folder}/{_text(short)}" if folder else _text(short)
            if not name.endswith("/"):
                with view[start : start + length] as content:
                    yield Member(name, start, length), content
        name, size = None, None


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # in base 256, of more than 8 GB
        return int.from_bytes(field[1:], "big")
    return int(field.replace(b"\0", b" ").strip() or b"0", 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _facts(path: Path, said: bytes, name: str | None) -> tuple[str | None, int | None]:
    """Name and size in POSIX's lines of length, key and value, each the length of its whole line."""
    size, place = None, 0
    try:
        while place < len(said):
            digits, space, _ = said[place : place + 20].partition(b" ")
            line = said[place : place + int(digits)]
            if not space or len(line) != int(digits) or not line.endswith(b"\n"):
                raise ValueError("a line of another length")
            key, _, value = line[len(digits) + 1 : -1].partition(b"=")
            if key.startswith(b"GNU.sparse"):
                raise ValueError("a sparse file")
            name = _text(value) if key == b"path" else name
            size = int(value) if key == b"size" else size
            place += len(line)
        if size is not None and size < 0:
            raise ValueError("a negative size")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: what it says of a file is no list of facts ({error})") from error
    return name, size
