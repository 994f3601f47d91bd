"""Check the pictures that clients send, and read those of a gallery."""

import io
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from PIL import Image, ImageOps

from proxemic.allocator import give_back_freed_memory
from proxemic.data.pixels import crop
from proxemic.data.reading import UnreadableImageError, cut_thin, read_image
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


def check_query(content: bytes, pixels: int) -> int:
    """Return the number of pixels of a picture from its header; refuse too many, and files that are not pictures."""
    header = _header(content)
    if header is None:
        raise Refused(415, f"The file is not a picture: use {FORMATS_TEXT}.")
    width, height = header[1]
    if width * height > pixels:
        raise Refused(
            413,
            f"The picture has {width:,} x {height:,} pixels, but the limit is {pixels:,} pixels: send a smaller one.",
        )
    return width * height


@contextmanager
def decoding(pixels: int) -> Iterator[None]:
    """Give memory back to the system after a large picture, because the next picture may need far less."""
    try:
        yield
    finally:
        if pixels > _LARGE:
            give_back_freed_memory()


def original(name: str, roots: Sequence[str]) -> tuple[str, bytes]:
    """Return the content type and the content of a row's file, or of the part inside the row's box."""
    content, box = _read(name, roots)
    kind, pixels = _examine(content)
    if box is None:
        return kind, content
    with decoding(pixels):
        return "image/jpeg", _jpeg(_cut(content, box))


def thumbnail(name: str, roots: Sequence[str]) -> tuple[str, bytes]:
    """Return the content type and the content of a small copy of a row's picture."""
    content, box = _read(name, roots)
    with decoding(_examine(content)[1]):
        picture = _cut(content, box, SIDE if box is None else None)
        return "image/jpeg", _jpeg(ImageOps.contain(cut_thin(picture).convert("RGB"), (SIDE, SIDE)))


def _gone() -> Refused:
    return Refused(404, "The picture is no longer there, or is not a picture.")


def _examine(content: bytes) -> tuple[str, int]:
    """Return the content type and the number of pixels of a picture of the gallery."""
    header = _header(content)
    if header is None:
        raise _gone()
    kind, (width, height) = header
    return TYPES[kind], width * height


def _header(content: bytes) -> tuple[str, tuple[int, int]] | None:
    """Return format, width and height of a picture without decoding it; None if the format is not supported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                return str(opened.format), opened.size
    except Image.DecompressionBombError:  # so many pixels that Pillow does not open it
        raise Refused(413, "The picture has too many pixels: send a smaller one.") from None
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


def _cut(content: bytes, box: tuple[int, int, int, int] | None, side: int | None = None) -> Image.Image:
    try:
        return crop(read_image(content, side), box)
    except (UnreadableImageError, ValueError) as error:  # the file may have become smaller than the box
        raise _gone() from error


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()
