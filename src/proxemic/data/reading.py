"""Read one image, from a file or from memory, as training and evaluation see it."""

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from proxemic.data.remote import UnreachableError, from_worker, is_address, path_or_address, read_address
from proxemic.files import backslash_hint, readable
from proxemic.image_formats import FORMATS, FORMATS_TEXT

ImageInput = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
"""What `read_image` takes."""

_Turn = Image.Transpose
_TURNS = {
    2: _Turn.FLIP_LEFT_RIGHT, 3: _Turn.ROTATE_180, 4: _Turn.FLIP_TOP_BOTTOM, 5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270, 7: _Turn.TRANSVERSE, 8: _Turn.ROTATE_90,
}  # fmt: skip
_MOST_SCANS = 200  # a usual JPEG file has 1 to 10; each takes as long to decode as a whole picture, and may be empty
_SCAN = re.compile(rb"\xff\xda\0[\6\x08\x0a\x0c\x0e][\0-\4]")  # the marker, its length and the number of colours
_THINNEST = 100  # largest ratio of the sides of an image that is resized


class UnreadableImageError(ValueError):
    """A file that cannot be decoded as an image.

    Args:
        path: The file; or the whole message, if a `DataLoader` rebuilds the error of a worker from its text.
        reason: Message of the decoder.

    >>> str(UnreadableImageError("cat.png", "truncated file"))
    'cat.png cannot be read as an image: truncated file.'
    """

    def __init__(self, path: str | Path, reason: str = "") -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        if not self.reason:
            return from_worker(self, str(self.path))
        return f"{readable(self.path)} cannot be read as an image: {self.reason.rstrip('.')}."


def read_image(image: ImageInput, side: int | None = None) -> Image.Image:
    """Prepare an image exactly as training and evaluation see it: upright, opaque, 8 bits, of mode L or RGB.

    The EXIF tag turns the image upright, transparency is flattened on white, and 16 bits become 8. An image that was
    prepared before is returned unchanged.

    Args:
        image: The path of a file, or an address that fsspec knows, such as ``s3://bucket/a.jpg``; the content of a file
            as bytes; a PIL image; or a NumPy array `[H, W]` or `[H, W, C]` of uint8 or uint16, whose 1 to 4 channels
            are grey, grey and alpha, RGB, or RGB and alpha.
        side: Pixels to which `shrink` reduces the shorter side of a larger image, at least 1; None does not shrink. A
            JPEG file is decoded at 1/2, 1/4 or 1/8 of its size if the result is large enough, which is much faster.

    Raises:
        UnreadableImageError: If the file is missing, is not a regular file, or cannot be decoded.
        ValueError: If the image has another type.

    >>> read_image(Image.new("RGBA", (4, 2))).getpixel((0, 0))
    (255, 255, 255)
    """
    if isinstance(image, str | os.PathLike | bytes):
        with open_image(image) as opened:
            if side is not None:
                opened.draft(None, (side, side))  # only JPEG files can do this
            return shrink(_prepare(opened), side)
    if isinstance(image, np.ndarray):
        return shrink(_prepare(_from_array(image)), side)
    if not isinstance(image, Image.Image):
        raise ValueError(
            f"image is of type {type(image).__name__}, but it must be a path, the bytes of a file, a PIL image or "
            "a NumPy array."
        )
    # An opened file may know more of itself than its info says.
    if image.mode in ("L", "RGB") and not image.info and type(image) is Image.Image:
        return shrink(image, side)
    try:
        return shrink(_prepare(image), side)
    except Exception as error:  # opened, but not yet decoded: as in `open_image`
        raise UnreadableImageError(getattr(image, "filename", "") or "image", describe(error)) from error


def shrink(image: Image.Image, side: int | None) -> Image.Image:
    """Resize an image to a shorter side of `side` pixels if it is larger; None does not resize.

    >>> shrink(Image.new("L", (50, 80)), 32).size, shrink(Image.new("L", (50, 80)), 64).size
    ((32, 51), (50, 80))
    """
    return image if side is None or min(image.size) <= side else resize_shorter(image, side)


def cut_thin(image: Image.Image) -> Image.Image:
    """Crop an image whose sides differ by a factor of more than 100 around its middle, to bound the cost of resizing.

    >>> cut_thin(Image.new("L", (2_000_000, 1))).size
    (100, 1)
    """
    longest = _THINNEST * min(image.size)
    if max(image.size) <= longest:
        return image
    width, height = (min(side, longest) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def resize_shorter(image: Image.Image, side: int, method: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
    """Resize an image to a shorter side, as torchvision's `Resize` does."""
    shorter = min(image.size)
    if shorter == side:
        return image
    return image.resize((side * image.width // shorter, side * image.height // shorter), method)


@contextmanager
def open_image(file: str | os.PathLike[str] | bytes) -> Iterator[Image.Image]:
    """Open a file, or its content, without decoding the pixels; every failure is raised as `UnreadableImageError`."""
    name = f"image of {len(file):,} bytes" if isinstance(file, bytes) else path_or_address(file)
    try:
        # Closing an image frees its memory before the next one is decoded.
        with _open(file) as opened, closing(Image.open(opened, formats=FORMATS)) as image:
            if image.format in ("JPEG", "MPO"):
                opened.seek(0)
                if len(_SCAN.findall(opened.read())) > _MOST_SCANS:
                    raise ValueError(f"its JPEG data has more than {_MOST_SCANS} scans")
            yield image
    except UnreachableError:
        raise  # the image may be sound
    # Pillow's decoders raise any error of the format's parser: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise UnreadableImageError(name, describe(error)) from error


def examine(path: Path) -> tuple[str, tuple[int, int]]:
    """Decode a whole file, which detects truncated ones; return its format and upright (width, height)."""
    with open_image(path) as image:
        kind, (width, height) = image.format or "unknown", image.size
        if kind == "JPEG":
            image.draft(image.mode, (1, 1))  # reads everything, but computes an eighth of the image
        image.load()
        if image.mode not in ("L", "RGB"):
            _flatten(image)
        return kind, (height, width) if _orientation(image) >= 5 else (width, height)


def describe(error: Exception) -> str:
    """Describe in a few words, without the path, why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        return f"no such file{backslash_hint(error.filename or '')}"
    if isinstance(error, Image.UnidentifiedImageError):
        return f"its content is not {FORMATS_TEXT}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _open(file: str | os.PathLike[str] | bytes) -> io.BufferedReader | io.BytesIO:
    if isinstance(file, bytes):
        return io.BytesIO(file)
    if isinstance(file, str) and is_address(file):
        return io.BytesIO(read_address(file))
    mode = Path(file).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe would wait, and a device may never end
        raise ValueError("it is a pipe, a device or a socket, not a file")
    return Path(file).open("rb")


def _prepare(image: Image.Image) -> Image.Image:
    """Turn an opened image upright and flatten it; raise the errors of the decoder."""
    image.load()  # the tag may follow the pixels
    turn = _TURNS.get(_orientation(image))
    prepared = _flatten(image if turn is None else image.transpose(turn))
    prepared.info = {}  # the rotation has been applied
    return prepared


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF, for which Pillow raises any error except in JPEG files; the pixels may be sound
        return 1


def _from_array(array: np.ndarray) -> Image.Image:
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    colour = array.ndim == 3 and array.shape[2] in (2, 3, 4)
    depth = array.dtype.itemsize if array.dtype.kind == "u" else None  # in either order of bytes
    if depth not in (1, 2) or not (grey or colour) or not array.size:
        raise ValueError(
            f"image is an array of {array.dtype} of shape {list(array.shape)}, but it must be [H, W] or [H, W, C] of "
            "uint8 or uint16, with 1 to 4 channels."
        )
    if grey:
        array = array.reshape(array.shape[:2])
    if depth == 2:
        # Pillow drops the lower byte when it reads 16-bit colours from a file.
        array = (array // 257 if grey else array >> 8).astype(np.uint8)
    return Image.fromarray(array)


def _flatten(image: Image.Image) -> Image.Image:
    """Return a new image of mode L or RGB."""
    if image.mode.startswith("I"):  # of 16 or 32 bits
        deep = np.asarray(image).clip(0, 65535)
        deep //= 257  # in place: a large image takes much memory
        return Image.fromarray(deep.astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, "white")
        return Image.alpha_composite(white, opaque).convert(mode)
    return image.convert(mode)
