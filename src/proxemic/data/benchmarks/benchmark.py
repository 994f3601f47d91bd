"""Base class of published data sets; their official splits are counted before use."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from proxemic.data.images import ImageSet, ImageSource, Splits, require_root
from proxemic.data.splits import hold_out
from proxemic.ranges import SEEDS, check_fields


@dataclass(frozen=True)
class OriginalFile:
    """A file as the authors of a data set publish it.

    Args:
        name: Path below the data set's folder; the file may also lie directly in that folder.
        md5: Published checksum, if any.
        url: URL; None if the file must be fetched by hand.
        tree: Folder within the archive that holds the data; None if the file is read without unpacking.
    """

    name: str
    md5: str | None = None
    url: str | None = None
    tree: str | None = None


@dataclass(frozen=True)
class Facts:
    """Size and origin of a published data set.

    Args:
        key: Name on the command line.
        title: Name in print.
        counts: Classes and images of the complete splits, such as ``{"train images": 5864}``.
        files: The original files.
        page: Web page about the data set.
        by_hand: How to fetch files without a URL by hand, as half a sentence.
        mirror_files: Archives of another layout, which are unpacked where they are.
    """

    key: str
    title: str
    counts: Mapping[str, int]
    files: tuple[OriginalFile, ...]
    page: str
    by_hand: str = ""
    mirror_files: tuple[OriginalFile, ...] = ()


class AbsentError(ValueError):
    """Raised if the data set is not in the folder, or still packed."""


@dataclass(frozen=True, eq=False)
class Official:
    """Both official splits, as found on disk.

    Args:
        train: Training images.
        test: Test images.
        flaws: Differences from the official data set, half a sentence each.
    """

    train: ImageSet
    test: ImageSet
    flaws: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of classes and images of each split, and of queries and gallery images if the test has these roles."""
        counts: dict[str, int] = {}
        for name, images in (("train", self.train), ("test", self.test)):
            counts |= {f"{name} classes": images.num_classes, f"{name} images": len(images)}
        if self.test.is_query is not None and self.test.is_gallery is not None:
            counts["query images"] = int(self.test.is_query.sum())
            counts["gallery images"] = int(self.test.is_gallery.sum())
        return counts


@dataclass(frozen=True)
class Benchmark(ImageSource):
    """A published data set with official splits; see its subclasses."""

    root: Path | None = None
    validation_fraction: float = 0.5
    split_seed: int = 0
    check_counts: bool = True

    facts: ClassVar[Facts]

    def __post_init__(self) -> None:
        check_fields(self, "data", split_seed=SEEDS, validation_fraction="[0, 1)")

    @abstractmethod
    def read(self) -> Official:
        """Read the annotations, and check which images exist.

        Raises:
            AbsentError: If the data set is missing, or still packed.
            ValueError: If the annotations contradict themselves.
        """

    def load(self) -> Splits:
        """Read the official splits, and hold out training classes for validation.

        Raises:
            ValueError: If the data set is missing, incomplete or damaged.
        """
        official = self.read()
        return self.arrange(official, self.check(official))

    def arrange(self, official: Official, notes: tuple[str, ...]) -> Splits:
        """Hold out training classes for validation."""
        train, validation = hold_out(official.train, self.validation_fraction, self.split_seed)
        return Splits(train, validation, official.test, notes)

    def check(self, official: Official) -> tuple[str, ...]:
        """Raise `ValueError` unless the data set is complete; with ``check_counts=False``, return notes instead."""
        counts = official.counts
        differences = [
            f"{name} {counts.get(name, 0):,} instead of {count:,}"
            for name, count in self.facts.counts.items()
            if counts.get(name, 0) != count
        ]
        flaws = "; ".join((*official.flaws, *differences))
        if not flaws:
            return ()
        if self.check_counts:
            raise ValueError(
                f"{self.folder} is not the {self.facts.title} of the papers: {flaws}; delete what is damaged and run "
                f"{self.command}, or, to use it as it is, set check_counts to false (--data.check_counts false)."
            )
        return (f"Not the {self.facts.title} of the papers, but check_counts is false: {flaws}.",)

    @property
    def folder(self) -> Path:
        """The folder to search; `ValueError` if ``root`` is not given."""
        make = f"which proxemic datasets prepare {self.facts.key} --root DIR makes"
        return require_root(self.root, f"the folder of {self.facts.title}, {make}")

    @property
    def command(self) -> str:
        """The command that gets the data set."""
        return f"proxemic datasets prepare {self.facts.key} --root {self.folder}"

    def find(self, *names: str) -> Path:
        """Return the first of these files or folders that exists, or raise `AbsentError`, which says how to get it."""
        for name in names:
            if (self.folder / name).exists():
                return self.folder / name
        for file in self.files:
            archive = self.locate(file)
            tree = archive.parent / file.tree if archive and file.tree else None
            if tree and not tree.exists():
                raise AbsentError(f"{archive} is not unpacked: run {self.command}.")
            if tree and names[0].startswith(f"{file.tree}/"):
                raise AbsentError(f"{tree} lacks {names[0]}: delete it and run {self.command}.")
        if not self.facts.by_hand:
            raise AbsentError(f"{self.folder} has no {names[0]}: run {self.command}, which fetches it.")
        raise AbsentError(
            f"{self.folder} has no {names[0]}, and {self.facts.title} must be fetched by hand: {self.facts.by_hand} "
            f"into {self.folder}, and run {self.command}."
        )

    @property
    def files(self) -> tuple[OriginalFile, ...]:
        """The original files of all layouts."""
        return (*self.facts.files, *self.facts.mirror_files)

    def locate(self, file: OriginalFile) -> Path | None:
        """Return the path of an original file, or None."""
        places = (self.folder / file.name, self.folder / Path(file.name).name)
        return next((place for place in places if place.is_file()), None)
