"""Pictures that come from others, and those of a gallery that are given out."""

import io
import os
import stat
import warnings
from collections.abc import Iterable

from PIL import Image, ImageOps

from proxemic.data.pixels import UnreadableImageError, read_image
from proxemic.data.pixels.named import path_and_box
from proxemic.data.pixels.reading import cut_thin
from proxemic.data.pixels.roots import is_below
from proxemic.data.pixels.stores import crop
from proxemic.data.remote import is_address, read_address
from proxemic.errors import UserError
from proxemic.image_formats import FORMATS, FORMATS_TEXT
from proxemic.serve.messages import Refused

TYPES = {name: f"image/{name.lower()}" for name in FORMATS} | {"MPO": "image/jpeg"}
"""The content types of formats that are given out; MPO is what some cameras' JPEG files are to Pillow."""

SIDE = 256
"""Pixels of the longer side of a thumbnail."""

_LARGEST = 200_000_000  # bytes of a file that is given out


def check_query(content: bytes, pixels: int) -> None:
    """Refuse the content of a file that is no picture, by its header alone, or one of too many pixels."""
    try:
        header = _header(content)
    except Image.DecompressionBombError as error:  # so many that Pillow does not open it
        raise _too_large(f"The picture is too large ({error})", pixels) from error
    if header is None:
        raise Refused(415, f"The file is no picture in the format {FORMATS_TEXT}: send one that is.")
    width, height = header[1]
    if width * height > pixels:
        raise _too_large(f"The picture has {width:,} x {height:,} pixels", pixels)


def _too_large(what: str, pixels: int) -> Refused:
    return Refused(413, f"{what}, but at most {pixels:,} pixels are taken: send a smaller one.")


def original(name: str, roots: Iterable[str]) -> tuple[str, bytes]:
    """The content type and the content of the file that a row is named by; of a row with a box, that part of it."""
    content, box = _read(name, roots)
    kind = _kind(content)
    return (kind, content) if box is None else ("image/jpeg", _jpeg(_cut(content, box)))


def thumbnail(name: str, roots: Iterable[str]) -> tuple[str, bytes]:
    """The content type and the content of a small picture of it."""
    content, box = _read(name, roots)
    _kind(content)
    picture = _cut(content, box, SIDE if box is None else None)
    return "image/jpeg", _jpeg(ImageOps.contain(cut_thin(picture).convert("RGB"), (SIDE, SIDE)))


def _gone() -> Refused:
    return Refused(404, "The picture is not there any more, or no picture.")


def _kind(content: bytes) -> str:
    """The content type of a picture of the gallery."""
    try:
        header = _header(content)
    except Image.DecompressionBombError as error:
        raise _gone() from error
    if header is None:
        raise _gone()
    return TYPES[header[0]]


def _header(content: bytes) -> tuple[str, tuple[int, int]] | None:
    """Format, width and height of a picture, which is not decoded; None where it is none of the formats."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                return str(opened.format), opened.size
    except Image.DecompressionBombError:
        raise
    except Exception:  # whatever the parser of the format raises
        return None


def _read(name: str, roots: Iterable[str]) -> tuple[bytes, tuple[int, int, int, int] | None]:
    """Read the file of a row, which must lie below a root; return its content, and its box if it has one."""
    try:
        path, box = path_and_box(name)
        if not is_below(path, roots):
            raise _gone()
        return _content(path), box
    except (OSError, ValueError, UserError) as error:
        raise _gone() from error


def _content(name: str) -> bytes:
    """The content of a file that is one: no link, by which another may have taken its place, no pipe and no device."""
    if is_address(name):
        return read_address(name)
    # What is opened is what was looked at; a pipe is not waited for.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(name, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ValueError(f"{name} is no file that is given out")
        return file.read(_LARGEST)


def _cut(content: bytes, box: tuple[int, int, int, int] | None, side: int | None = None) -> Image.Image:
    try:
        return crop(read_image(content, side), box)
    except (UnreadableImageError, ValueError) as error:  # a box may leave what is there now
        raise _gone() from error


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()
