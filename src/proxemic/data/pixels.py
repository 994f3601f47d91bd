"""Pixel stores: where the pictures of an image set lie until they are needed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from proxemic.data.reading import read_image


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
    """Image files, opened when asked for, and prepared by `read_image`.

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
