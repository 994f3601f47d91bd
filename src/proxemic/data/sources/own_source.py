"""Base class of the user's own data, with given splits or splits held out by a seed."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Int64
from torch import Tensor

from proxemic.data.formats.tables import SPLITS, SplitName
from proxemic.data.images import ImageSet, ImageSource, Splits
from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows, first_few
from proxemic.data.splits import hold_out
from proxemic.data.vectors import Vectors
from proxemic.files import readable
from proxemic.ranges import SEEDS, check_fields

NewImages = Literal["leave", "join"]
SPLIT_NAMES: tuple[SplitName, ...] = get_args(SplitName)
_SPLIT_PLACES = {text: SPLIT_NAMES.index(name) for text, name in SPLITS.items()}


@dataclass(frozen=True)
class OwnSource(ImageSource):
    """Base class of a user's own data; subclasses implement `read_rows`.

    Args:
        root: Path of the data.
        test_fraction: Fraction of the classes, or of the images of each class, held out for the test if no test is
            given, 0 to below 1; 0 for a final model on all classes, or if the given split has only training images.
        validation_fraction: Fraction of the remaining ones held out for validation if none is given, 0 to below 1.
        hold_out: Classes for an open set, images for a closed one.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If a fraction is out of range, or (on load) the data cannot be found, read or split.
    """

    root: Path | None = None
    test_fraction: float = 0.25
    validation_fraction: float = 0.25
    hold_out: Literal["classes", "images"] = "classes"
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "data", test_fraction="[0, 1)", validation_fraction="[0, 1)", split_seed=SEEDS)

    @abstractmethod
    def read_rows(self) -> Rows:
        """Read all rows: each has a label, and either all have a split or none has."""

    def read(self) -> Rows:
        """Read all rows and check their classes and splits; add a note about classes with a single row."""
        rows = self.read_rows()
        given_splits(rows)
        return replace(rows, notes=(*rows.notes, *_check_classes(self.root, rows)))

    def class_names(self) -> Sequence[str]:
        """Return the names of all classes."""
        return self.read().numbers("label")[1]

    def gives_splits(self) -> bool:
        """Return whether the data assign images to training, validation and test."""
        return self.root is not None and self.read().has("split")

    @property
    def has_test(self) -> bool:
        """Whether a test is held out; with a test_fraction of 0, the data may still have a given test."""
        return self.test_fraction > 0

    def load(self) -> Splits:
        rows = self.read()
        parts, notes = self._given_parts(rows)
        train, validation, test = (parts[name] for name in SPLIT_NAMES)
        assert train is not None
        try:
            if test is None:
                train, test = hold_out(train, self.test_fraction, self.split_seed, self.hold_out, name="test_fraction")
            if validation is None:
                train, validation = hold_out(train, self.validation_fraction, self.split_seed, self.hold_out)
        except ValueError as error:
            raise ValueError(
                f"{self.root} has {len(rows.numbers('label')[1])} classes in all, of {len(rows)} {train.kind}, too few "
                f"for its splits: {error} With few classes, --data.hold_out images holds out images of each of them; "
                "--data.test_fraction and --data.validation_fraction say how much."
            ) from error
        for name, images in (("train", train), ("validation", validation), ("test", test)):
            self._check_part(name, images)
        torn = _torn_sequences(train, validation, test) if self.hold_out == "images" else ()
        chosen = self._chosen_rows(rows, {"train": train, "validation": validation, "test": test})
        return Splits(train, validation, test, (*notes, *torn, *rows.notes), chosen)

    def load_again(self, chosen: Rows, new_images: NewImages = "leave", *, complete: bool = False) -> Splits:
        """Read the images in a split that was made before, even if files were added or removed since.

        Args:
            chosen: ``rows`` of the earlier `Splits`. An image is found again by its path and label.
            new_images: ``leave`` leaves later images out, ``join`` adds them to the split of their class (the test if
                a class is in several splits), but leaves those of unknown classes out.
            complete: Refuse missing images, which are otherwise named in a note.

        Raises:
            ValueError: If the data cannot be read, images are missing (with ``complete``), or too few are left.
        """
        rows = self.read()
        if not isinstance(rows.pixels, FilePixels):
            raise ValueError(f"{self.root} has no image files, by which its split could be found again.")
        row_of = {key: row for row, key in enumerate(zip(self._names_within(rows.pixels), rows.labels, strict=True))}
        places: dict[str, list[int]] = {split: [] for split in SPLIT_NAMES}
        splits, split_of_class, missing = chosen.texts("split"), dict[str | None, str](), list[str]()
        for name, label, split in zip(chosen.names, chosen.labels, splits, strict=True):
            assert split is not None
            if (row := row_of.pop((name, label), None)) is None:
                missing.append(name)
            else:
                places[split].append(row)
            split_of_class[label] = max(split, split_of_class.get(label, split), key=SPLIT_NAMES.index)
        lacking = f"{len(missing):,} of {len(splits):,} ({first_few(missing)})"
        if missing and complete:
            raise ValueError(f"Images are missing in {self.root}, or have another label: {lacking}. Put them back.")
        notes = [f"Left out, missing in {self.root} or with another label: {lacking}."] if missing else []
        late = list[str]()
        for (name, label), row in row_of.items():  # these came later
            if new_images == "join" and label in split_of_class:
                places[split_of_class[label]].append(row)
            else:
                late.append(name)
        if joined := len(row_of) - len(late):
            notes.append(f"{joined:,} images came after the split was made, and join the split of their class.")
        if late:
            end = "their classes are new" if new_images == "join" else "--new-images join adds those of known classes"
            notes.append(f"Left out, as they came after the split was made: {len(late):,} ({first_few(late)}); {end}.")
        parts: dict[str, ImageSet | None] = {}
        for name, chosen_places in places.items():
            if not chosen_places and name in splits:
                raise ValueError(
                    f"No {name} image is left; missing in {self.root} or with another label: {lacking}: put them back."
                )
            flagged = name != "train" or not rows.has("split")
            parts[name] = ImageSet.of(rows.take(chosen_places), flagged) if chosen_places else None
            self._check_part(name, parts[name])
        train = parts["train"]
        assert train is not None
        return Splits(train, parts["validation"], parts["test"], (*notes, *rows.notes), chosen)

    def _chosen_rows(self, rows: Rows, parts: Mapping[str, ImageSet | None]) -> Rows | None:
        """Return the path, label and split of each image; None if the rows are not files."""
        if not isinstance(rows.pixels, FilePixels):
            return None
        files = {split: part.pixels for split, part in parts.items() if part is not None}
        split_of = {name: split for split, part in files.items() if isinstance(part, FilePixels) for name in part.names}
        splits = [split_of[name] for name in rows.pixels.names]
        return Rows.of(path=self._names_within(rows.pixels), label=rows.labels, split=splits)

    def _names_within(self, files: FilePixels) -> list[str]:
        """Return the names of files relative to the data, since the data may be moved."""
        assert self.root is not None
        base = self.root if self.root.is_dir() else self.root.parent
        prefixes = [readable(f"{folder}{os.sep}") for folder in (base, os.path.abspath(base))]  # noqa: PTH100 - without ".."
        return [name.removeprefix(prefixes[0]).removeprefix(prefixes[1]) for name in files.names]

    def load_unsplit(self) -> tuple[ImageSet, tuple[str, ...]]:
        """Read all images as one set, to evaluate a model on them; return it with notes, as in `Splits`."""
        rows = self.read()
        images = ImageSet.of(rows)
        self._check_part("only", images)
        return images, rows.notes

    def load_split(self, split: SplitName) -> tuple[ImageSet, tuple[str, ...]]:
        """Read the images that the data assign to a split, with notes; other splits may be empty.

        If the data have no test split, the validation split is the test, as in `load`.
        """
        rows = self.read()
        given = given_splits(rows)
        if given is None:
            raise ValueError(f"{self.root} gives no splits: load all of it (load_unsplit), or have it split (load).")
        known = [SPLIT_NAMES[place] for place in given.unique().tolist()]
        wanted = "validation" if split == "test" and "test" not in known else split
        chosen = (given == SPLIT_NAMES.index(wanted)).nonzero().flatten()
        images = ImageSet.of(rows.take(chosen), flagged=wanted != "train")
        if wanted not in known:
            raise ValueError(
                f"{self.root} has no {images.kind.removesuffix('s')} in {split}: its splits are "
                f"{', '.join(sorted(known))}."
            )
        self._check_part(wanted, images)
        called = f"its {wanted} split, as there is no test" if wanted != split else f"its {split} split"
        taken = f"{self.root} gives splits: {called}, {len(chosen):,} of {len(rows):,} {images.kind}, is taken."
        return images, (taken, *rows.notes)

    def _given_parts(self, rows: Rows) -> tuple[dict[SplitName, ImageSet | None], tuple[str, ...]]:
        given = given_splits(rows)
        if given is None:
            return {"train": ImageSet.of(rows), "validation": None, "test": None}, ()
        places: dict[SplitName, Int64[Tensor, " chosen"]] = {
            name: (given == place).nonzero().flatten() for place, name in enumerate(SPLIT_NAMES)
        }
        labels, class_names = rows.numbers("label")
        kind = "vectors" if isinstance(rows.pixels, Vectors) else "images"
        if not len(places["train"]):
            raise ValueError(
                f"{self.root} gives splits but no readable training {kind.removesuffix('s')}: add some, give no "
                "splits, or load one split alone (load_split; --split of proxemic evaluate)."
            )
        names = {name: {*labels[chosen].unique().tolist()} for name, chosen in places.items()}
        for one, other in combinations(SPLIT_NAMES, 2):
            shared = [class_names[label] for label in sorted(names[one] & names[other])]
            if shared and self.hold_out == "classes":
                raise ValueError(
                    f"{self.root} has {len(shared)} classes in both {one} and {other} ({first_few(shared)}): move each "
                    "to one side, give no splits and let split_seed choose, or set hold_out to images to evaluate on "
                    "new images of classes that were trained on."
                )
        notes = ()
        if not len(places["test"]) and self.test_fraction > 0:
            if not len(places["validation"]):
                raise ValueError(
                    f"{self.root} gives every {kind.removesuffix('s')} to train, so that there is no test: set "
                    "test_fraction to 0 to train on all of them, or give no splits to have a test held out."
                )
            places["test"], places["validation"] = places["validation"], places["test"]
            notes = (
                f"{self.root} gives no test split: its validation split is the test, used once, "
                f"and validation_fraction of the training {self.hold_out} is for validation.",
            )
        return {
            name: ImageSet.of(rows.take(chosen), flagged=name != "train") if len(chosen) else None
            for name, chosen in places.items()
        }, notes

    def _check_part(self, name: str, images: ImageSet | None) -> None:
        if images is None:
            return
        if images.num_classes < 2:
            raise ValueError(
                f"{self.root} has {images.num_classes} class in its {name} split, but at least two are needed."
            )
        if name != "train" and not anything_to_find(images):
            raise ValueError(
                f"{self.root} has no query with another {images.kind.removesuffix('s')} of its class to find in its "
                f"{name} split: add {images.kind}, mind is_query, is_gallery and sequence, or change split_seed or the "
                "fractions."
            )


def given_splits(rows: Rows) -> Int64[Tensor, " rows"] | None:
    """Return the index in `SPLIT_NAMES` of each row's split; None if the data have no splits."""
    if not rows.has("split"):
        return None
    rows.require("split")
    return rows.meanings("split", _SPLIT_PLACES, "train, validation (or val) or test")


def _check_classes(root: Path | None, rows: Rows) -> tuple[str, ...]:
    """Raise `ValueError` if there is one class, or no class with two images; return a note on single images."""
    images = ImageSet.of(rows, flagged=False)
    kind, counts = images.kind, images.labels.bincount()
    if images.num_classes == 1:
        raise ValueError(f"{root} has a single class, {images.class_names[0]!r}, but at least two are needed.")
    if int(counts.max()) == 1:
        raise ValueError(
            f"{root} has {images.num_classes} classes with one {kind.removesuffix('s')} each, but {kind} of one class "
            f"are compared: give each class at least two {kind}."
        )
    lone = [images.class_names[label] for label in (counts == 1).nonzero().flatten().tolist()]
    single = f"have a single {kind.removesuffix('s')}, which a test cannot find a match for"
    return (f"{len(lone)} classes {single}: {first_few(lone)}.",) if lone else ()


def anything_to_find(images: ImageSet) -> bool:
    """Return whether any query has another image of its class, and of another sequence, in the gallery."""
    # An image without a sequence is a sequence of its own.
    sequences, count = torch.arange(len(images)), len(images)
    if images.sequences is not None:
        numbers, known = images.sequences, int(images.sequences.max()) + 1
        sequences, count = torch.where(numbers < 0, sequences + known, numbers), count + known
    kinds = images.labels * count + sequences
    queries = kinds if images.is_query is None else kinds[images.is_query]
    gallery = (kinds if images.is_gallery is None else kinds[images.is_gallery]).unique()
    of_class = (gallery // count).bincount(minlength=images.num_classes)
    return bool((of_class[queries // count] > torch.isin(queries, gallery)).any())


def _torn_sequences(*parts: ImageSet | None) -> tuple[str, ...]:
    sides = [{*filter(None, part.rows.texts("sequence"))} for part in parts if part is not None]
    torn = sorted(set[str]().union(*(one & other for one, other in combinations(sides, 2))))
    note = (
        f"{len(torn)} sequences have images in more than one of training, validation and test ({first_few(torn)}), "
        "which makes the test too easy: give a column split that keeps each on one side."
    )
    return (note,) if torn else ()
