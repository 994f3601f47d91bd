"""Pixel stores: where the images of an image set lie until they are needed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from proxemic.data.pixels.reading import UnreadableImageError, read_image
from proxemic.data.tables import Box
from proxemic.files import readable


class Pixels(ABC):
    """A sequence of images, each a PIL image of mode L or RGB."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Image.Image: ...

    @abstractmethod
    def select(self, indices: Sequence[int]) -> "Pixels":
        """Keep the images at `indices`, in that order."""


@dataclass(frozen=True, eq=False)
class ArrayPixels(Pixels):
    """Grey images of one size, held in memory.

    Args:
        array: One image per row, 0 (black) to 255 (white).

    Example:
        >>> pixels = ArrayPixels(np.zeros((3, 8, 8), dtype=np.uint8))
        >>> len(pixels), pixels[0].mode, pixels[0].size
        (3, 'L', (8, 8))
    """

    array: UInt8[np.ndarray, "images height width"]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Image.Image:
        return Image.fromarray(self.array[index])

    def select(self, indices: Sequence[int]) -> "ArrayPixels":
        return ArrayPixels(self.array[np.asarray(indices, dtype=np.int64)])


class FilePixels(Pixels):
    """Image files, opened on access and prepared by `read_image`.

    Args:
        paths: One file per image.
        boxes: x_1, y_1, x_2 and y_2 of the part of the file that each image is, in pixels of the upright image
            that `read_image` gives, or None for all of it; None where every image is a whole file.

    Raises:
        ValueError: If there is not one box per path.
        UnreadableImageError: If, on access, a file is missing or cannot be decoded, or its box leaves the image.

    Example:
        >>> FilePixels([Path("cats.png")] * 2, [(0, 0, 50, 80), (30, 10, 90, 80)]).names
        ('cats.png (0, 0, 50, 80)', 'cats.png (30, 10, 90, 80)')
    """

    def __init__(self, paths: Sequence[Path], boxes: Sequence[Box | None] | None = None) -> None:
        self.paths = tuple(paths)
        self.boxes: tuple[Box | None, ...] = (None,) * len(self.paths) if boxes is None else tuple(boxes)
        if len(self.boxes) != len(self.paths):
            raise ValueError(f"boxes has {len(self.boxes)} entries but paths {len(self.paths)}: give one per image.")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:
        image = read_image(self.paths[index])
        try:
            return crop(image, self.boxes[index])
        except ValueError as error:
            raise UnreadableImageError(self.paths[index], str(error)) from error

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each image, with its box where it has one."""
        return tuple(
            readable(path) + ("" if box is None else f" {box}")
            for path, box in zip(self.paths, self.boxes, strict=True)
        )

    def select(self, indices: Sequence[int]) -> "FilePixels":
        return FilePixels([self.paths[index] for index in indices], [self.boxes[index] for index in indices])


def crop(image: Image.Image, box: Box | None) -> Image.Image:
    """Cut a box out of an upright image; raise `ValueError` where it leaves the image."""
    if box is None:
        return image
    check_box(box, image.size)
    return image.crop(box)


def check_box(box: Box, size: tuple[int, int]) -> None:
    """Raise `ValueError` where a box leaves an image of this width and height."""
    if box[2] > size[0] or box[3] > size[1]:
        raise ValueError(f"its box {box} leaves the upright image, {size[0]} x {size[1]} pixels")
