"""Read one image, from a file or from memory, as training and evaluation see it."""

import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import ExifTags, Image

from proxemic.data.remote import UnreachableError, from_worker, is_address, path_or_address, read_address
from proxemic.files import backslash_hint, readable
from proxemic.image_formats import FORMATS, FORMATS_TEXT

Bits = int | Literal["auto"] | None
"""How many of 16 or 32 bits are used, see `read_image`; ``auto`` scales by the largest value, to show an image."""

Box = tuple[int, int, int, int]

ImageInput = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
"""What `read_image` takes."""

_BITS_PER_SAMPLE, _MAX_SAMPLE_VALUE, _TILE_WIDTH, _TILE_LENGTH, _S_MAX_SAMPLE_VALUE = 258, 281, 322, 323, 341
_Turn = Image.Transpose
_TURNS = {
    2: _Turn.FLIP_LEFT_RIGHT, 3: _Turn.ROTATE_180, 4: _Turn.FLIP_TOP_BOTTOM, 5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270, 7: _Turn.TRANSVERSE, 8: _Turn.ROTATE_90,
}  # fmt: skip
_MOST_SCANS = 200  # a usual JPEG file has 1 to 10; each takes as long to decode as a whole image, and may be empty
_SCAN = re.compile(rb"\xff\xda\0[\6\x08\x0a\x0c\x0e][\0-\4]")  # the marker, its length and the number of colours
_LARGEST_TILE = 2**24  # pixels of a tile of a TIFF file, unless the image itself is larger
_USUAL, _DEEP = 4096, 65535  # 12 bits have values below the first; the second is the white of 16 bits
_WHITE = "white"  # the largest possible value of an image, as the file states it
_HOW = (
    "set images.bits, such as 12 for values up to 4,095 or 16 for dark images, or state the range in the file (TIFF: "
    "MaxSampleValue, PNG: sBIT)"
)
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


def read_image(image: ImageInput, side: int | None = None, bits: Bits = None) -> Image.Image:
    """Prepare an image exactly as training and evaluation see it: upright, opaque, 8 bits, of mode L or RGB.

    The EXIF tag turns the image upright, transparency is flattened on white, and 16 or 32 bits become 8. An image that
    was prepared before is returned unchanged.

    Args:
        image: The path of a file, or a URL that fsspec supports, such as ``s3://bucket/a.jpg``; the content of a file
            as bytes; a PIL image; or a NumPy array `[H, W]` or `[H, W, C]` of uint8 or uint16, whose 1 to 4 channels
            are grey, grey and alpha, RGB, or RGB and alpha.
        side: Pixels to which `shrink` reduces the shorter side of a larger image, at least 1; None does not shrink. A
            JPEG file is decoded at 1/2, 1/4 or 1/8 of its size if the result is large enough, which is much faster.
        bits: How many of the 16 or 32 bits of a pixel are used, 1 to 32, such as 12 if white is 4,095: microscopes,
            X-ray and depth cameras write such files. None takes the range that the file states (MaxSampleValue of TIFF,
            sBIT of PNG), else 16 bits. Images of 8 bits are unchanged.

    Raises:
        UnreadableImageError: If the file is missing, is not a regular file, or cannot be decoded; or if its values
            exceed `bits`, or it states no range and its values need 12 bits or fewer, or more than 16.
        ValueError: If the image has another type.

    >>> read_image(Image.new("RGBA", (4, 2))).getpixel((0, 0))
    (255, 255, 255)
    """
    if isinstance(image, str | os.PathLike | bytes):
        with open_image(image) as opened:
            if side is not None:
                opened.draft(None, (side, side))  # only JPEG files can do this
            return shrink(_prepare(opened, bits), side)
    if isinstance(image, np.ndarray):
        return shrink(_prepare(_from_array(image, bits), bits), side)
    if not isinstance(image, Image.Image):
        raise ValueError(
            f"image is of type {type(image).__name__}, but it must be a path, the bytes of a file, a PIL image or "
            "a NumPy array."
        )
    # An opened file may know more of itself than its info says.
    if image.mode in ("L", "RGB") and not image.info and type(image) is Image.Image:
        return shrink(image, side)
    try:
        return shrink(_prepare(image, bits), side)
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
            if decoded_pixels(image) > max(_LARGEST_TILE, image.width * image.height):
                raise ValueError("its tiles are far larger than the image")
            if (white := _stated_white(image, opened)) is not None:
                image.info[_WHITE] = white
            yield image
    except UnreachableError:
        raise  # the image may be sound
    # Pillow's decoders raise any error of the format's parser: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise UnreadableImageError(name, describe(error)) from error


def decoded_pixels(image: Image.Image) -> int:
    """Return how many pixels an opened image has in memory while it is decoded.

    A tile of a TIFF file is decoded as a whole, and may be larger than the image.

    >>> decoded_pixels(Image.new("L", (4, 2)))
    8
    """
    tags = getattr(image, "tag_v2", {})
    return max(image.width * image.height, int(tags.get(_TILE_WIDTH, 0)) * int(tags.get(_TILE_LENGTH, 0)))


def read_small(image: str | os.PathLike[str] | bytes, side: int, box: Box | None = None) -> Image.Image:
    """Read an image, or a box of the upright image, to show it with a shorter side of `side` pixels or a little more.

    The image is reduced before it is turned and flattened, so that memory holds only one whole copy of it, or two if it
    has transparency. Its pixels are not exactly those of `read_image`, and 16 bits are scaled by the largest value.

    Raises:
        UnreadableImageError: If the file cannot be decoded.
        ValueError: If the box exceeds the image.
    """
    with open_image(image) as opened:
        if box is None:
            opened.draft(None, (side, side))
        opened.load()
        part, turn = opened, _turn(opened)
        if box is not None:
            part, turn = crop(opened if turn is None else opened.transpose(turn), box), None
        if (factor := min(part.size) // side) > 1:
            # Palettes and 16 bits have no mean.
            is_plain = part.mode not in ("1", "P") and not part.mode.startswith("I;")
            size = (part.width // factor, part.height // factor)
            part = part.reduce(factor) if is_plain else part.resize(size, Image.Resampling.NEAREST)
        return _upright(part, turn, "auto")


def crop(image: Image.Image, box: Box | None) -> Image.Image:
    """Cut a box out of an upright image; raise `ValueError` if it exceeds the image."""
    if box is None:
        return image
    check_box(box, image.size)
    return image.crop(box)


def check_box(box: Box, size: tuple[int, int]) -> None:
    """Raise `ValueError` if a box exceeds an image of this width and height."""
    if box[2] > size[0] or box[3] > size[1]:
        raise ValueError(f"its box {box} exceeds the upright image, {size[0]} x {size[1]} pixels")


def examine(path: Path) -> tuple[str, tuple[int, int]]:
    """Decode a whole file, which detects truncated ones; return its format and upright (width, height)."""
    with open_image(path) as image:
        kind, (width, height) = image.format or "unknown", image.size
        if kind == "JPEG":
            image.draft(image.mode, (1, 1))  # reads everything, but computes an eighth of the image
        image.load()
        if image.mode not in ("L", "RGB"):
            _flatten(image, "auto")
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


def _prepare(image: Image.Image, bits: Bits) -> Image.Image:
    """Turn an opened image upright and flatten it; raise the errors of the decoder."""
    image.load()  # the tag may follow the pixels
    return _upright(image, _turn(image), bits)


def _upright(image: Image.Image, turn: Image.Transpose | None, bits: Bits) -> Image.Image:
    prepared = _flatten(image if turn is None else image.transpose(turn), bits)
    prepared.info = {}  # the rotation has been applied
    return prepared


def _turn(image: Image.Image) -> Image.Transpose | None:
    return _TURNS.get(_orientation(image))


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF, for which Pillow raises any error except in JPEG files; the pixels may be sound
        return 1


def _from_array(array: np.ndarray, bits: Bits) -> Image.Image:
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
        white = _white_of(array, None, bits)
        # Pillow drops the lower byte when it reads 16-bit colours from a file.
        array = (array >> 8).astype(np.uint8) if not grey and white == _DEEP else _to_bytes(array, white)
    return Image.fromarray(array)


def _stated_white(image: Image.Image, file: io.BufferedReader | io.BytesIO) -> int | None:
    """Return the largest possible value of a pixel, as a TIFF or PNG file states it, or 0; None for 8 bits."""
    if image.format == "TIFF":
        bits, *_ = (*_numbers(image, _BITS_PER_SAMPLE), 1)
        named = max((*_numbers(image, _MAX_SAMPLE_VALUE), *_numbers(image, _S_MAX_SAMPLE_VALUE)), default=0)
        return None if bits <= 8 else int(named) if bits in (16, 32) else 2 ** int(bits) - 1
    if image.format != "PNG":
        return None
    at, used = file.tell(), b""
    file.seek(24)  # in the first chunk
    depth = file.read(1)
    file.seek(33)
    while len(head := file.read(8)) == 8 and head[4:] not in (b"PLTE", b"IDAT"):
        content = file.read(int.from_bytes(head[:4], "big"))
        used = content[: 1 if len(content) < 3 else 3] if head[4:] == b"sBIT" else used  # without alpha
        file.seek(4, os.SEEK_CUR)
    file.seek(at)
    return None if depth != b"" else 2 ** max(used, default=0) - 1


def _numbers(image: Image.Image, tag: int) -> tuple[Any, ...]:
    value = getattr(image, "tag_v2", {}).get(tag, ())
    return value if isinstance(value, tuple) else (value,)


def _white_of(values: np.ndarray, stated: int | None, bits: Bits) -> int:
    """Return the value that becomes white; raise `ValueError` if it is not known, or if values exceed it."""
    low, high = int(values.min()), int(values.max())
    if bits == "auto":
        return stated or max(1, high)
    white = stated or None if bits is None else 2**bits - 1
    if white is None and low >= 0 and high <= _DEEP and (high == 0 or high >= _USUAL):
        return _DEEP
    if white is None:
        raise ValueError(
            f"its values of 16 or 32 bits are {low:,} to {high:,}, and it does not state their range: {_HOW}"
        )
    if low < 0 or high > white:
        raise ValueError(f"its values are {low:,} to {high:,}, but its range is 0 to {white:,}: {_HOW}")
    return white


def _to_bytes(values: np.ndarray, white: int) -> np.ndarray:
    """Scale whole numbers so that `white` becomes 255."""
    if white > _DEEP:
        return (values.clip(0, white).astype(np.int64) * 255 // white).astype(np.uint8)
    table = (np.arange(white + 1) * 255 // white).astype(np.uint8)  # without a wider copy of a large image
    return table[values.clip(0, white)]


def _flatten(image: Image.Image, bits: Bits) -> Image.Image:
    """Return a new image of mode L or RGB."""
    stated = image.info.get(_WHITE)
    if image.mode.startswith("I"):  # of 16 or 32 bits
        values = np.asarray(image)
        return Image.fromarray(_to_bytes(values, _white_of(values, stated, bits)))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    if stated is not None:  # Pillow keeps the upper 8 of 16 bits of colours
        return _brightened(_opaque(image), stated, bits)
    return _opaque(image)


def _brightened(image: Image.Image, stated: int, bits: Bits) -> Image.Image:
    """Scale the upper bytes of 16-bit colours; raise `ValueError` if too much was in the lower ones."""
    white = stated or None if bits is None or bits == "auto" else 2**bits - 1
    most = max(np.ravel(image.getextrema()).tolist())
    if bits != "auto" and (most < _USUAL >> 8 if white is None else white < _DEEP // 2):
        raise ValueError(
            "its colours have 16 bits, but use fewer, which cannot be read: save it with 8 bits, or with colours up to "
            "65,535; or set images.bits to 16 if it is dark"
        )
    if white is None or white >= _DEEP:
        return image
    return image.point([min(255, value * _DEEP // white) for value in range(256)] * len(image.getbands()))


def _opaque(image: Image.Image) -> Image.Image:
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, "white")
        return Image.alpha_composite(white, opaque).convert(mode)
    return image.convert(mode)
