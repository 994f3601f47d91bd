"""FashionMNIST: small grey images of clothes."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile
from proxemic.data.images import ImageSet, Splits
from proxemic.data.pixels import ArrayPixels
from proxemic.data.rows import Rows
from proxemic.files import has_md5

_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_MIRROR = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


@dataclass(frozen=True)
class FashionMNIST(Benchmark):
    """70,000 images, 28 by 28, of 10 kinds of clothes: for plots of two-dimensional embeddings.

    The official splits have the same classes. By default, the training images of the first five classes train, and the
    test images of the last five classes test, so that test classes are unseen.

    Args:
        root: The folder of the four files, packed or not; they may be in torchvision's `FashionMNIST/raw` below it.
        validation_fraction: Fraction of the training classes (or images) held out for validation, 0 (none) to below 1.
        split_seed: Seed of the choice of these.
        check_counts: Refuse files whose counts or checksums are not the published ones; if false, only a note says so.
        split: "classes" as above, or "images": the official splits, tested on classes that were trained on.

    Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
    2017.

    >>> FashionMNIST(split="images").split
    'images'
    """

    facts: ClassVar[Facts] = Facts(
        key="fashion-mnist",
        title="FashionMNIST",
        counts={"train classes": 10, "train images": 60000, "test classes": 10, "test images": 10000},
        files=tuple(OriginalFile(name, md5, _MIRROR + name) for name, md5 in _MD5.items()),
        page="https://github.com/zalandoresearch/fashion-mnist",
    )

    split: Literal["classes", "images"] = "classes"

    def read(self) -> Official:
        flaws: list[str] = []
        train, test = (self._read_part(part, flaws) for part in ("train", "t10k"))
        return Official(train, test, tuple(flaws))

    def arrange(self, official: Official, notes: tuple[str, ...]) -> Splits:
        """Use other classes for the test, or hold out training images for validation."""
        if self.split == "classes":
            train, test = official.train.select_classes(range(5)), official.test.select_classes(range(5, 10))
            note = "Official training images of the first five classes train, test images of the last five test."
            return super().arrange(Official(train, test), (note, *notes))
        note = "The test classes were trained on (split is 'images'): for plots, not for measuring retrieval."
        order = torch.randperm(len(official.train), generator=torch.Generator().manual_seed(self.split_seed))
        held = math.floor(len(order) * self.validation_fraction)
        validation = official.train.select(order[:held].sort().values) if held else None
        return Splits(official.train.select(order[held:].sort().values), validation, official.test, (note, *notes))

    def _read_part(self, part: str, flaws: list[str]) -> ImageSet:
        images = self._read_file(f"{part}-images-idx3-ubyte", 3, flaws)
        labels = self._read_file(f"{part}-labels-idx1-ubyte", 1, flaws)
        if len(images) != len(labels) or set(labels.tolist()) != set(range(len(_NAMES))):
            raise ValueError(
                f"{self.folder} has {len(images):,} images and {len(labels):,} labels in its {part} files, of "
                f"classes {sorted(set(labels.tolist()))}: a label for each of classes 0 to 9 is needed."
            )
        return ImageSet(Rows.of(ArrayPixels(images)), torch.from_numpy(labels.astype(np.int64)), _NAMES)

    def _read_file(self, name: str, dimensions: int, flaws: list[str]) -> np.ndarray:
        folders = ("", "raw/", "FashionMNIST/raw/")
        path = self.find(*(f"{folder}{name}{ending}" for folder in folders for ending in (".gz", "")))
        published = next(file.md5 for file in self.files if file.name == f"{name}.gz")
        if path.suffix == ".gz" and not has_md5(path, published):
            flaws.append(f"{path.name} is not the published one, by its MD5")
        return _read_idx(path, dimensions)


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of bytes: 0, 0, 8, the number of dimensions, each dimension in four bytes, the content."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}): delete it and fetch it again.") from error
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"{path} is not an idx file of {dimensions}-dimensional bytes: delete it and fetch it again.")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
    if len(content) - start != math.prod(shape.tolist()):
        raise ValueError(
            f"{path} holds {len(content) - start:,} bytes, but announces {' x '.join(map(str, shape))}: it is cut "
            "short; delete it and fetch it again."
        )
    # a copy, as the labels and images may be written to
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
