"""Pixel stores: where the pictures of an image set lie until they are needed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

_GREY_MODES = ("1", "L")
_DEEP_GREY_MODES = ("I", "I;16", "I;16B", "I;16L")


class UnreadableImageError(ValueError):
    """A file that cannot be decoded as an image.

    Args:
        path: the file, or the whole message where a `DataLoader` rebuilds the error of a worker from its text.
        reason: what the decoder said.

    Example:
        >>> str(UnreadableImageError("cat.png", "truncated file"))
        'cat.png cannot be read as an image: truncated file.'
    """

    def __init__(self, path: str | Path, reason: str = "") -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        if not self.reason:  # the worker's traceback; its last line is this error's own
            return str(self.path).strip().splitlines()[-1].rpartition("UnreadableImageError: ")[2]
        return f"{self.path} cannot be read as an image: {self.reason.rstrip('.')}."


class Pixels(ABC):
    """A sequence of pictures, each a PIL image of mode L or RGB."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Image.Image: ...

    @abstractmethod
    def select(self, indices: Sequence[int]) -> "Pixels":
        """Keep the pictures at `indices`, in that order."""


class ArrayPixels(Pixels):
    """Grey pictures of one size, held in memory.

    Args:
        array: one picture a row, 0 (black) to 255 (white).

    Example:
        >>> pixels = ArrayPixels(np.zeros((3, 8, 8), dtype=np.uint8))
        >>> len(pixels), pixels[0].mode, pixels[0].size
        (3, 'L', (8, 8))
    """

    def __init__(self, array: UInt8[np.ndarray, "images height width"]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Image.Image:
        return Image.fromarray(self.array[index])

    def select(self, indices: Sequence[int]) -> "ArrayPixels":
        """Keep the pictures at `indices`, in that order."""
        return ArrayPixels(self.array[np.asarray(indices, dtype=np.int64)])


class FilePixels(Pixels):
    """Image files, opened when asked for.

    A picture is turned upright by its EXIF tag; transparency is flattened on white; 16-bit grey becomes 8-bit.

    Args:
        paths: one file a picture.

    Raises:
        UnreadableImageError: on access, when a file is missing or cannot be decoded.

    Example:
        >>> len(FilePixels([Path("cat.png"), Path("dog.jpg")]))
        2
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:
        return read_image(self.paths[index])

    def select(self, indices: Sequence[int]) -> "FilePixels":
        """Keep the pictures at `indices`, in that order."""
        return FilePixels([self.paths[index] for index in indices])


def read_image(path: Path) -> Image.Image:
    """Decode one file to an upright picture of mode L or RGB.

    Raises:
        UnreadableImageError: the file is missing or cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            return _flatten(ImageOps.exif_transpose(image))
    # Pillow's decoders raise whatever the parser of the format raises: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise UnreadableImageError(path, describe(error)) from error


def describe(error: Exception) -> str:
    """Say in a few words, without the path, why a file could not be read."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, Image.UnidentifiedImageError):
        return "its content is not that of a known image format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP_GREY_MODES:
        deep = np.asarray(image).astype(np.int64)
        return Image.fromarray((deep.clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, "white")
        target = "L" if image.mode in ("LA", "La", *_GREY_MODES) else "RGB"
        return Image.alpha_composite(white, opaque).convert(target)
    return image.convert("L" if image.mode in _GREY_MODES else "RGB")
