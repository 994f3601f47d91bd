"""A cache of decoded and shrunk images, so that reading images does not slow down training."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from proxemic.caches import cache_folder
from proxemic.data.formats.tables import Box
from proxemic.data.images import ImageSet, Splits
from proxemic.data.pixels import CachedPixels, FilePixels, PixelFile, write_pixels
from proxemic.data.reading import UnreadableImageError, describe, open_image, shrink
from proxemic.errors import UserError
from proxemic.ranges import check_range

Cut = tuple[Path, Box | None]  # a file, and the part of it that is an image

_VERSION = 2  # of the processing of images before they are written
_SAMPLE = 64  # images in the sample that estimates the size of all
_TOGETHER = 128  # images in memory at once while writing


@dataclass(frozen=True)
class CacheConfig:
    """Whether image files are read from a cache of decoded images, and where the cache is.

    The files are decoded once, into one file of raw pixels. An image whose shorter side is longer than `shorter_side`
    is resized to it as `Preprocessing` does, with the aspect ratio kept; a smaller one is stored as it is.

    `auto` stores large images as `Preprocessing.reduce` shrinks them, so that training and evaluation see exactly the
    same tensors as from the files. It writes a cache if most images of a sample are larger than
    `Preprocessing.reduced_side`, and uses at most half of the free disk space; a note says what was done.

    With a number, evaluation that resizes to this size sees the same tensors as from the files. The exception is
    evaluation that converts colour images to grey, which then happens after resizing. Training with
    `random_resized_crop` crops the shrunk images, which have less detail than the files, and a preprocessing of another
    size resizes the images a second time: to compare with published figures, train without a cache.

    A colour image takes 3 · shorter_side² · (longer side / shorter side) bytes, about 0.26 MB at 256. Reading is fast
    while the file fits into free memory. A cache is identified by the paths, sizes and modification times of the image
    files, by their boxes and by `shorter_side`: after a change a new one is written, and the old one is not deleted.

    Args:
        shorter_side: Pixels to which the shorter side of a larger image is shrunk, at least 1: with the `resize` of the
            preprocessing, evaluation is bitwise the same; or `auto`; None for no cache.
        folder: Folder of the caches; None for the user's cache folder.

    Raises:
        ValueError: If the shorter side is out of range.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (50, 80), "red").save(folder / "a.png")
    >>> images = ImageSet.from_names(FilePixels([folder / "a.png"]), ["red"])
    >>> CacheConfig(32, folder / "cache").apply(Splits(images, None, None)).train.pixels[0].size
    (32, 51)
    """

    shorter_side: int | Literal["auto"] | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.shorter_side != "auto":
            check_range("cache.shorter_side", self.shorter_side, "[1, inf)")

    def apply(self, splits: Splits, reduced_side: int | None = None, bits: int | None = None) -> Splits:
        """Return the splits with all image files read from one cache, which is written if necessary.

        Images that are not in files are returned unchanged. Notes name the cache, and tell whether a damaged cache was
        replaced. `reduced_side` and `bits` are those of the preprocessing; without `reduced_side`, `auto` writes no
        cache.

        Raises:
            UnreadableImageError: If a file is missing or cannot be decoded; nothing is kept.
            UserError: If the disk has too little space, or the folder cannot be written to; `auto` then reads the
                images from their files instead.
        """
        is_auto = self.shorter_side == "auto"
        side = reduced_side if self.shorter_side == "auto" else self.shorter_side
        if side is None:
            return splits
        parts = (splits.train, splits.validation, splits.test)
        # Sorted, so that the same images share one cache however the classes are split.
        cuts = sorted({cut for part in parts for cut in _uncached(part)}, key=lambda cut: (cut[0], cut[1] or ()))
        if not cuts or (is_auto and median(map(_side, _sample(cuts))) <= side):
            return splits
        folder = Path(self.folder or cache_folder("images"))
        shrinking = _Shrinking(side, side == reduced_side, bits)
        digest = hashlib.sha256(b"%d %d" % (_VERSION, side) + b" reduced" * shrinking.reduces)
        digest.update(b"" if bits is None else b" %d bits" % bits)
        for cut in cuts:
            digest.update(key_of(cut))
        path = folder / f"images-{side}-{digest.hexdigest()[:16]}.pixels"
        try:
            file, damage = _open(path, len(cuts))
            if file is None:
                _write(path, cuts, shrinking, 0.5 if is_auto else 1.0)
                file = PixelFile(path)
        except UserError as error:
            if not is_auto:
                raise
            return replace(splits, notes=(*splits.notes, f"The images are read from their files: {error}"))
        places = {cut: place for place, cut in enumerate(cuts)}

        def swap(part: ImageSet | None) -> ImageSet | None:
            if part is None or not (uncached := _uncached(part)):
                return part
            paths, boxes = zip(*uncached, strict=True)
            return part.with_pixels(CachedPixels(file, np.array([places[cut] for cut in uncached]), paths, boxes))

        train, validation, test = map(swap, parts)
        assert train is not None
        without = "; --cache.shorter_side null does without, and gives the same" if is_auto else ""
        note = (
            f"{len(cuts):,} images are read from the cache {path} ({_megabytes(file.size)}), shrunk to a shorter side "
            f"of {side} pixels{without}."
        )
        return replace(splits, train=train, validation=validation, test=test, notes=(*splits.notes, *damage, note))


class _Shrinking(NamedTuple):
    """The side to which images are shrunk, whether `Preprocessing.reduce` shrinks them, and their bits."""

    side: int
    reduces: bool
    bits: int | None = None


def _uncached(images: ImageSet | None) -> tuple[Cut, ...]:
    pixels = None if images is None else images.pixels
    if not isinstance(pixels, FilePixels) or isinstance(pixels, CachedPixels):
        return ()
    return tuple((Path(path), box) for path, box in zip(pixels.paths, pixels.boxes, strict=True))


def _side(cut: Cut) -> int:
    path, box = cut
    if box is not None:
        return min(box[2] - box[0], box[3] - box[1])
    with open_image(path) as image:  # not decoded
        return min(image.size)


def _sample(cuts: Sequence[Cut]) -> Sequence[Cut]:
    return cuts[:: -(-len(cuts) // _SAMPLE)]


def key_of(cut: Cut) -> bytes:
    """Return a key of an image, which changes when its file does."""
    path, box = cut
    try:
        facts = path.stat()
    except OSError as error:
        raise UnreadableImageError(path, describe(error)) from error
    key = b"\0%s\0%d %d" % (os.fsencode(path.absolute()), facts.st_size, facts.st_mtime_ns)
    return key if box is None else key + b" %d %d %d %d" % box


def _open(path: Path, count: int) -> tuple[PixelFile | None, tuple[str, ...]]:
    """Open a cache if it exists and is sound; a note describes the damage of a damaged one."""
    try:
        file = PixelFile(path)
        if len(file) != count:
            raise ValueError(f"{path} has {len(file):,} images instead of {count:,}.")
    except FileNotFoundError:
        return None, ()
    except (OSError, ValueError) as error:
        return None, (f"A cache of images was written again: {error}",)
    return file, ()


def _write(path: Path, cuts: Sequence[Cut], shrinking: _Shrinking, part: float) -> None:
    """Write a cache; `UserError` if it needs more than this fraction of the free disk space."""
    _check_space(cuts, shrinking, path.parent, part)
    # Pillow releases the GIL while decoding and resizing.
    with ThreadPoolExecutor() as pool, tqdm(desc="caching images", total=len(cuts), leave=False, disable=None) as bar:

        def images() -> Iterator[Image.Image]:
            for first in range(0, len(cuts), _TOGETHER):
                for image in pool.map(lambda cut: _shrink(cut, shrinking), cuts[first : first + _TOGETHER]):
                    yield image
                    bar.update()

        write_pixels(path, images())


def _shrink(cut: Cut, shrinking: _Shrinking) -> Image.Image:
    path, box = cut
    # Without `reduces`, JPEG files are decoded at full size; a reduced scale would give other pixels.
    side = shrinking.side if shrinking.reduces else None
    return shrink(FilePixels([path], [box]).load(0, side, shrinking.bits), shrinking.side)


def _check_space(cuts: Sequence[Cut], shrinking: _Shrinking, folder: Path, part: float) -> None:
    sample = _sample(cuts)
    needed = sum(len(_shrink(cut, shrinking).tobytes()) for cut in sample) * len(cuts) // len(sample)
    with suppress(OSError):  # writing will explain what is wrong with the folder
        free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
        if free * part < needed:
            raise UserError(
                f"{folder} has {_megabytes(free)} free, but the cache of {len(cuts):,} images at shorter side "
                f"{shrinking.side} needs about {_megabytes(needed)}: free some space, give another folder or a lower "
                "shorter side, or do without the cache."
            )


def _megabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
