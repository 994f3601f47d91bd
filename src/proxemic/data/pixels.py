"""Stores of images, which read or decode an image on access.

`Pixels` is a sequence of PIL images. `FilePixels` opens files, `ArrayPixels` holds arrays, and `CachedPixels` reads
images that were decoded before.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from proxemic.data.formats.tables import Box
from proxemic.data.reading import Bits, ImageInput, UnreadableImageError, crop, describe, read_image, shrink
from proxemic.extras import optional_dependency
from proxemic.files import readable, write_atomically

with optional_dependency("train"):
    import pyarrow as pa
    import pyarrow.compute as pc

_AT_ONCE = 2**22  # pixels written together
_SHAPE = ("height", "width", "channels")
_SCHEMA = pa.schema([("pixels", pa.large_binary()), *((name, pa.int64()) for name in _SHAPE)])

Indices = Sequence[int] | Int64[np.ndarray, " chosen"]


class Pixels(ABC):
    """A sequence of images, each a PIL image of mode L or RGB.

    A subclass that is a dataclass lists the fields with one value per image in ``per_image``; other subclasses define
    `__len__` and `select`.
    """

    per_image: ClassVar[tuple[str, ...]]

    def __len__(self) -> int:
        return len(getattr(self, self.per_image[0]))

    @abstractmethod
    def __getitem__(self, index: int) -> Image.Image: ...

    def load(self, index: int, side: int | None = None, bits: Bits = None) -> Image.Image:
        """Return an image; shrink it to a shorter side of `side` pixels, and scale its `bits`, as `read_image` does."""
        return shrink(self[index], side)

    def select(self, indices: Indices) -> "Pixels":
        """Keep the images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        parts = {name: getattr(self, name) for name in self.per_image}
        this: Any = self
        return replace(
            this,
            **{
                name: part[chosen] if isinstance(part, np.ndarray) else tuple(part[index] for index in chosen.tolist())
                for name, part in parts.items()
            },
        )


@dataclass(frozen=True, eq=False)
class ArrayPixels(Pixels):
    """Grey images of one size, held in memory.

    Args:
        array: The images ``[N, H, W]``, 0 (black) to 255 (white).

    >>> pixels = ArrayPixels(np.zeros((3, 8, 8), dtype=np.uint8))
    >>> len(pixels), pixels[0].mode, pixels[0].size
    (3, 'L', (8, 8))
    """

    per_image = ("array",)
    array: UInt8[np.ndarray, "images height width"]

    def __getitem__(self, index: int) -> Image.Image:
        return Image.fromarray(self.array[index])


class EncodedPixels(Pixels):
    """Encoded images within a larger file, decoded on access."""

    @abstractmethod
    def encoded(self, index: int) -> ImageInput:
        """Return the bytes of an encoded image, or the path of its file."""

    @abstractmethod
    def place(self, index: int) -> str:
        """Name an image in messages."""

    def __getitem__(self, index: int) -> Image.Image:
        return self.load(index)

    def load(self, index: int, side: int | None = None, bits: Bits = None) -> Image.Image:
        try:
            return read_image(self.encoded(index), side, bits)
        except (OSError, ValueError, struct.error) as error:
            why = error.reason if isinstance(error, UnreadableImageError) else describe(error)
            raise UnreadableImageError(self.place(index), why) from error


class FilePixels(Pixels):
    """Image files, opened on access and prepared by `read_image`.

    Args:
        paths: One file per image; a text is a URL, such as ``s3://bucket/a.jpg``.
        boxes: x_1, y_1, x_2 and y_2 of each image within its file, in pixels of the upright image that `read_image`
            returns; None for a whole file, or for whole files only.

    Raises:
        ValueError: If there is not one box per path.
        UnreadableImageError: If, on access, a file is missing or cannot be decoded, or its box exceeds the image.

    >>> FilePixels([Path("cats.png")] * 2, [(0, 0, 50, 80), (30, 10, 90, 80)]).names
    ('cats.png (0, 0, 50, 80)', 'cats.png (30, 10, 90, 80)')
    """

    def __init__(self, paths: Sequence[Path | str], boxes: Sequence[Box | None] | None = None) -> None:
        self.paths = tuple(paths)
        self.boxes: tuple[Box | None, ...] = (None,) * len(self.paths) if boxes is None else tuple(boxes)
        if len(self.boxes) != len(self.paths):
            raise ValueError(f"boxes has {len(self.boxes)} entries but paths {len(self.paths)}: give one per image.")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:
        return self.load(index)

    def load(self, index: int, side: int | None = None, bits: Bits = None) -> Image.Image:
        path, box = self.paths[index], self.boxes[index]
        if box is None:
            return read_image(path, side, bits)
        image = read_image(path, bits=bits)  # a box is in pixels of the whole image
        try:
            return shrink(crop(image, box), side)
        except ValueError as error:
            raise UnreadableImageError(path, str(error)) from error

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each image, followed by its box if it has one."""
        return tuple(
            readable(path) + ("" if box is None else f" {box}")
            for path, box in zip(self.paths, self.boxes, strict=True)
        )

    def select(self, indices: Indices) -> "FilePixels":
        return FilePixels([self.paths[index] for index in indices], [self.boxes[index] for index in indices])


class PixelFile:
    """A file written by `write_pixels`; it is pickled as its path.

    `ValueError` if the file is damaged, truncated or of another kind. The pixels themselves are not checked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.open("rb").close()  # a missing file raises another OSError
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            table.validate(full=True)
            self._pixels, self._shapes = table["pixels"], np.stack([table[name].to_numpy() for name in _SHAPE], 1)
            lengths = pc.call_function("binary_length", [self._pixels]).to_numpy()
        except (pa.ArrowException, KeyError) as error:
            raise ValueError(f"{path} is not a sound file of decoded images ({error}).") from error
        if (self._shapes.prod(axis=1) != lengths).any():
            raise ValueError(f"{path} has a damaged table of sizes.")

    def __len__(self) -> int:
        return len(self._shapes)

    def __reduce__(self) -> tuple[type["PixelFile"], tuple[Path]]:
        return PixelFile, (self.path,)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def read(self, place: int) -> Image.Image:
        """Return an image by its index; grey images share the mapped memory."""
        height, width, channels = self._shapes[place].tolist()
        pixels = np.frombuffer(self._pixels[place].as_buffer(), np.uint8)
        return Image.fromarray(pixels.reshape((height, width) if channels == 1 else (height, width, channels)))


def write_pixels(path: Path, images: Iterable[Image.Image]) -> None:
    """Write images of mode L or RGB to an Arrow file, which is complete or not written."""
    held: list[Image.Image] = []
    with write_atomically(path) as temporary, pa.ipc.new_file(str(temporary), _SCHEMA) as file:
        for image in images:
            held.append(image)
            if sum(item.width * item.height for item in held) >= _AT_ONCE:
                file.write_batch(_as_batch(held))
                held.clear()
        file.write_batch(_as_batch(held))


def _as_batch(images: Sequence[Image.Image]) -> pa.RecordBatch:
    facts = [(image.tobytes(), image.height, image.width, len(image.getbands())) for image in images]
    return pa.RecordBatch.from_pylist([dict(zip(_SCHEMA.names, fact, strict=True)) for fact in facts], _SCHEMA)


class CachedPixels(FilePixels):
    """Image files that are read from a cache of `CacheConfig`, which holds them decoded, cropped and shrunk."""

    def __init__(
        self,
        file: PixelFile,
        places: Int64[np.ndarray, " images"],
        paths: Sequence[Path | str],
        boxes: Sequence[Box | None] | None = None,
    ) -> None:
        super().__init__(paths, boxes)
        self.file, self.places = file, places

    def __getitem__(self, index: int) -> Image.Image:
        return self.file.read(int(self.places[index]))

    def load(self, index: int, side: int | None = None, bits: Bits = None) -> Image.Image:
        return shrink(self[index], side)

    def select(self, indices: Indices) -> "CachedPixels":
        chosen = np.asarray(indices, dtype=np.int64)
        whole = super().select(chosen.tolist())
        return CachedPixels(self.file, self.places[chosen], whole.paths, whole.boxes)
