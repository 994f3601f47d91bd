"""Omniglot: handwritten characters of many alphabets, read from the original archives."""

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from proxemic.data.benchmarks.benchmark import Benchmark, Facts, Official, OriginalFile
from proxemic.data.benchmarks.downloads import download
from proxemic.data.images import ImageSet, ImageSource, Splits, require_root
from proxemic.data.pixels import ArrayPixels
from proxemic.data.reading import UnreadableImageError, read_image
from proxemic.data.splits import hold_out
from proxemic.ranges import SEEDS, check_fields

_PAGE = "https://github.com/brendenlake/omniglot"
_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"


def _archive(name: str, md5: str) -> OriginalFile:
    return OriginalFile(f"{name}.zip", md5, f"{_URL}/{name}.zip")


ARCHIVES = {
    "small": (
        _archive("images_background_small1", "e704a628b5459e08445c13499850abc4"),
        _archive("images_background_small2", "b75a71a51d3b13f821f212756fe481fd"),
    ),
    "full": (
        _archive("images_background", "68d2efa1b9178cc56df9314c21c6e718"),
        _archive("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
    ),
}
"""The training archive and the test archive of each subset."""


@dataclass(frozen=True)
class Omniglot(ImageSource):
    """Characters as classes, each drawn by 20 people, 105 by 105 pixels.

    The archives contain dark ink on white; it is inverted to ink 255 on 0, as everywhere in this package.
    The small set trains on 136 characters of 5 alphabets and tests on the 106 characters of those 3 alphabets of the
    second archive that the first does not have; the full set trains on 964 characters and tests on 659. All images are
    held in memory, 11 kB each.

    Args:
        root: Folder with the two archives as zip files, or extracted; they may also be in torchvision's
            `omniglot-py` below it.
        subset: "small" (4,840 images) or "full" (32,460 images).
        validation_fraction: Fraction of the training characters held out for validation, 0 (none) to below 1.
        split_seed: Seed of the choice of validation characters.
        download: Fetch missing archives.

    Raises:
        ValueError: If (on load) an archive is missing, damaged or not Omniglot, or cannot be fetched.

    Source: Lake, Salakhutdinov, Tenenbaum, "Human-level concept learning through probabilistic program induction",
    Science 2015.

    >>> Omniglot(Path("data/omniglot"), subset="full").subset
    'full'
    """

    root: Path | None = None
    subset: Literal["small", "full"] = "small"
    validation_fraction: float = 0.5
    split_seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "data", split_seed=SEEDS, validation_fraction="[0, 1)")

    def load(self) -> Splits:
        """Read both archives, and drop test characters whose alphabet is in the training set."""
        root = require_root(self.root, "the folder of Omniglot's archives, which --data.download true fetches")
        train, test = map(_read, [_find(root, archive, self.download) for archive in ARCHIVES[self.subset]])
        known = {_alphabet(name) for name in train.class_names}
        new = [place for place, name in enumerate(test.class_names) if _alphabet(name) not in known]
        repeated = sorted(known.intersection(map(_alphabet, test.class_names)))
        notes: tuple[str, ...] = ()
        if repeated:
            notes = (
                f"{', '.join(repeated)} left out of the test: these alphabets are in the training archive too, "
                "and the test classes must be unseen.",
            )
        if len(new) < 2:
            raise ValueError(f"{self.root} has {len(new)} test characters that training lacks, but 2 are needed.")
        train, validation = hold_out(train, self.validation_fraction, self.split_seed)
        return Splits(train, validation, test.select_classes(new), notes)


def _alphabet(class_name: str) -> str:
    return class_name.split("/")[0]


def _places(archive: OriginalFile) -> list[str]:
    names = (archive.name, archive.name.removesuffix(".zip"))
    return [f"{folder}{name}" for folder in ("", "omniglot-py/") for name in names]


def _find(root: Path, archive: OriginalFile, fetch: bool) -> Path:
    for place in _places(archive):
        if (root / place).exists():
            return root / place
    if fetch and archive.url:
        download(archive.url, root / archive.name, archive.md5)
        return root / archive.name
    raise ValueError(
        f"{root} has neither {archive.name} nor a folder {archive.name.removesuffix('.zip')}: set download to true, or "
        f"fetch {archive.url} and put it there."
    )


def _read(archive: Path) -> ImageSet:
    images: list[np.ndarray] = []
    names: list[str] = []
    try:
        for path, content in _files(archive):
            # <archive>/<alphabet>/<character>/<drawing>.png
            names.append("/".join(path.split("/")[-3:-1]))
            try:
                images.append(255 - np.asarray(read_image(content).convert("L")))
            except UnreadableImageError as error:
                raise UnreadableImageError(archive / path, error.reason) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ValueError(f"{archive} is damaged ({error}): delete it and fetch it again.") from error
    if not images:
        raise ValueError(f"{archive} holds no <alphabet>/<character>/<drawing>.png, so it is not an Omniglot archive.")
    if len({image.shape for image in images}) > 1:
        raise ValueError(f"{archive} holds images of several sizes, so it is not an Omniglot archive.")
    return ImageSet.from_names(ArrayPixels(np.stack(images)), names)


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.is_dir():
        names = (path.relative_to(archive).as_posix() for path in archive.glob("*/*/*.png"))
        yield from ((name, (archive / name).read_bytes()) for name in sorted(filter(_is_drawing, names)))
        return
    with zipfile.ZipFile(archive) as opened:
        yield from ((name, opened.read(name)) for name in sorted(filter(_is_drawing, opened.namelist())))


def _is_drawing(name: str) -> bool:
    parts = name.split("/")
    # macOS adds hidden twins of every file to the archives it packs
    return name.endswith(".png") and len(parts) >= 3 and not any(part.startswith((".", "__")) for part in parts)


@dataclass(frozen=True)
class OmniglotSmall(Benchmark):
    """The small subset of Omniglot, for ``proxemic datasets``."""

    subset: ClassVar[Literal["small", "full"]] = "small"
    facts: ClassVar[Facts] = Facts(
        key="omniglot",
        title="Omniglot, small sets",
        counts={"train classes": 136, "train images": 2720, "test classes": 106, "test images": 2120},
        files=ARCHIVES["small"],
        page=_PAGE,
    )

    def read(self) -> Official:
        for file in self.facts.files:
            self.find(*_places(file))
        splits = Omniglot(self.folder, self.subset, validation_fraction=0.0).load()
        return Official(splits.train, splits.test_images)


@dataclass(frozen=True)
class OmniglotFull(OmniglotSmall):
    """All of Omniglot, for ``proxemic datasets``."""

    subset: ClassVar[Literal["small", "full"]] = "full"
    facts: ClassVar[Facts] = Facts(
        key="omniglot-full",
        title="Omniglot",
        counts={"train classes": 964, "train images": 19280, "test classes": 659, "test images": 13180},
        files=ARCHIVES["full"],
        page=_PAGE,
    )
