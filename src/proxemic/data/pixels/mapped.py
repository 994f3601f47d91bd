"""Decoded images in one file that is mapped into memory: opened in an instant, shared by all worker processes."""

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from PIL import Image

from proxemic.data.pixels.base import FilePixels
from proxemic.data.tables import Box
from proxemic.files import write_atomically

# Header, raw pixels of all images, and a table of height, width and channels, by which each image is found. The
# table comes last, as sizes are known only once an image is decoded, and in the same file, as two cannot be renamed
# at once.
_HEADER = struct.Struct("<16sQQI")  # name of the format, images, bytes of pixels, checksum of the table
_FORMAT = b"proxemic pixels1"
_ROW = np.dtype(("<u4", (3,)))


class PixelFile:
    """A file that `write_pixels` has written, open for reading; its pickle holds the path alone, to be mapped again.

    Args:
        path: The file.

    Raises:
        ValueError: If it is damaged, truncated or of another kind. The pixels themselves are not checked.
        OSError: If it is missing or cannot be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "two.pixels")
        >>> write_pixels(path, [Image.new("L", (8, 6)), Image.new("RGB", (5, 7), "red")])
        >>> len(PixelFile(path)), PixelFile(path).read(1).size
        (2, (5, 7))
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_FORMAT):
                raise ValueError(f"{path} is no file of decoded images.")
            _, count, length, checksum = _HEADER.unpack(header)
            expected, size = _HEADER.size + length + count * _ROW.itemsize, os.fstat(file.fileno()).st_size
            if size != expected:
                raise ValueError(f"{path} has {size:,} bytes, but by its header it must have {expected:,}.")
            file.seek(_HEADER.size + length)
            table = file.read()
        self._shapes = np.frombuffer(table, dtype=_ROW).astype(np.int64)
        if zlib.crc32(table) != checksum or self._shapes.prod(axis=1).sum() != length:
            raise ValueError(f"{path} has a damaged table of sizes.")
        self._ends = self._shapes.prod(axis=1).cumsum() + _HEADER.size
        # A view of the base class, whose slices are made faster.
        self._bytes = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))

    def __len__(self) -> int:
        return len(self._shapes)

    def __reduce__(self) -> tuple[type["PixelFile"], tuple[Path]]:
        return PixelFile, (self.path,)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return len(self._bytes)

    def read(self, place: int) -> Image.Image:
        """Return the image at `place`: a grey one in the mapped memory itself, a coloured one copied once."""
        height, width, channels = self._shapes[place].tolist()
        end = int(self._ends[place])
        flat = self._bytes[end - height * width * channels : end]
        return Image.fromarray(flat.reshape((height, width) if channels == 1 else (height, width, channels)))


def write_pixels(path: Path, images: Iterable[Image.Image]) -> None:
    """Write images of mode L or RGB, one at a time, to a file that is whole or not there.

    Raises:
        UserError: If it cannot be written, above all because the disk is full.
    """
    shapes: list[tuple[int, int, int]] = []
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        file.write(bytes(_HEADER.size))
        for image in images:
            shapes.append((image.height, image.width, len(image.getbands())))
            file.write(image.tobytes())
        length = file.tell() - _HEADER.size
        table = np.array(shapes, dtype="<u4").tobytes()
        file.write(table)
        file.seek(0)
        file.write(_HEADER.pack(_FORMAT, len(shapes), length, zlib.crc32(table)))


class CachedPixels(FilePixels):
    """Image files whose images are read, decoded and shrunk as they are, from a cache that `CacheConfig` keeps.

    Args:
        file: The cache.
        places: Where in it each image is.
        paths: The image file that each image came from; it is not opened.
        boxes: The part of it that the image is, as in `FilePixels`; it was cut out before.

    Raises:
        ValueError: If the parts do not fit together.
    """

    def __init__(
        self,
        file: PixelFile,
        places: Int64[np.ndarray, " images"],
        paths: Sequence[Path],
        boxes: Sequence[Box | None] | None = None,
    ) -> None:
        super().__init__(paths, boxes)
        self.file = file
        self.places = places
        if len(self.places) != len(self.paths):
            raise ValueError(f"places has {len(self.places)} entries but paths {len(self.paths)}: give one per image.")
        if len(self.places) and not 0 <= self.places.min() <= self.places.max() < len(file):
            raise ValueError(
                f"places go from {self.places.min()} to {self.places.max()}, but {file.path} has {len(file)} images, "
                "from 0."
            )

    def __getitem__(self, index: int) -> Image.Image:
        return self.file.read(int(self.places[index]))

    def select(self, indices: Sequence[int]) -> "CachedPixels":
        chosen = np.asarray(indices, dtype=np.int64)
        whole = super().select(chosen.tolist())
        return CachedPixels(self.file, self.places[chosen], whole.paths, whole.boxes)
