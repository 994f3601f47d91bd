"""Check the images that clients send, and read those of a gallery."""

import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from PIL import Image, ImageOps

from proxemic.allocator import give_back_freed_memory
from proxemic.data.reading import cut_thin, decoded_pixels, read_small
from proxemic.data.remote import is_address, read_address
from proxemic.data.roots import find_picture, path_and_box
from proxemic.errors import UserError
from proxemic.image_formats import FORMATS, FORMATS_TEXT
from proxemic.serve.limits import Refused

TYPES = {name: f"image/{name.lower()}" for name in FORMATS} | {"MPO": "image/jpeg"}
"""The content types of the formats that the server sends; Pillow calls the JPEG files of some cameras MPO."""

SIDE = 256
"""The longer side of a thumbnail, in pixels."""

_LARGEST = 200_000_000  # bytes of a file that the server sends
_LARGE = 4_000_000  # pixels from which memory is given back


class Decoding:
    """Let threads decode images in the order in which they ask, with at most `pixels` pixels together.

    A larger image of the gallery is decoded alone.

    Args:
        pixels: Most pixels of all images that are decoded at the same time.
    """

    def __init__(self, pixels: int) -> None:
        self._budget = self._free = pixels
        self._turn, self._changed = threading.Lock(), threading.Condition()

    @contextmanager
    def __call__(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for an image, and return memory to the system after a large one."""
        taken = min(pixels, self._budget)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            if pixels > _LARGE:
                give_back_freed_memory()  # the next image may need far less
            with self._changed:
                self._free += taken
                self._changed.notify()


def check_query(content: bytes, pixels: int) -> int:
    """Return how many pixels an image has while it is decoded; refuse too many, and files that are not images."""
    header = _header(content)
    if header is None:
        raise Refused(415, f"The file is not an image: use {FORMATS_TEXT}.")
    if header.pixels > pixels:
        width, height = header.size
        raise Refused(
            413,
            f"The photo has {width:,} x {height:,} pixels, and {header.pixels:,} in memory, but the limit is "
            f"{pixels:,} pixels: send a smaller one.",
        )
    return header.pixels


def original(name: str, roots: Sequence[str], decoding: Decoding) -> tuple[str, bytes]:
    """Return the content type and the content of a row's file, or of the part inside the row's box."""
    content, box = _read(name, roots)
    header = _examine(content)
    if box is None:
        return TYPES[header.kind], content
    with decoding(header.pixels), _readable():
        return "image/jpeg", _jpeg(read_small(content, max(header.size), box))


def thumbnail(name: str, roots: Sequence[str], decoding: Decoding) -> tuple[str, bytes]:
    """Return the content type and the content of a small copy of a row's image."""
    content, box = _read(name, roots)
    with decoding(_examine(content).pixels), _readable():
        picture = cut_thin(read_small(content, SIDE, box)).convert("RGB")
        return "image/jpeg", _jpeg(ImageOps.contain(picture, (SIDE, SIDE)))


class _Header(NamedTuple):
    kind: str
    size: tuple[int, int]
    pixels: int  # in memory, while it is decoded


def _gone() -> Refused:
    return Refused(404, "The photo is no longer there, or is not an image.")


def _examine(content: bytes) -> _Header:
    """Read the header of an image of the gallery."""
    header = _header(content)
    if header is None:
        raise _gone()
    return header


def _header(content: bytes) -> _Header | None:
    """Read the header of an image without decoding it; None if the format is not supported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                return _Header(str(opened.format), opened.size, decoded_pixels(opened))
    except Image.DecompressionBombError:  # so many pixels that Pillow does not open it
        raise Refused(413, "The photo has too many pixels: send a smaller one.") from None
    except Exception:  # the parser of a format may raise anything
        return None


def _read(name: str, roots: Sequence[str]) -> tuple[bytes, tuple[int, int, int, int] | None]:
    """Read the file of a row, which must lie below a root; return its content, and its box if it has one."""
    try:
        path, box = path_and_box(name)
        if (found := find_picture(path, roots)) is None:
            raise _gone()
        return _content(found), box
    except (OSError, ValueError, UserError) as error:
        raise _gone() from error


def _content(name: str) -> bytes:
    """Read a regular file, but not a link, which may lead elsewhere, a pipe or a device."""
    if is_address(name):
        return read_address(name)
    # Check the open file, so that nothing can take its place; do not wait for a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(name, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError(f"{name} is not a file that may be sent")
        return file.read(_LARGEST)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # the file may be damaged, or have become smaller than the box
        raise _gone() from error


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()
