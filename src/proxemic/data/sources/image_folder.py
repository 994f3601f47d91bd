"""The user's own images, from a folder of class folders or a table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from pathlib import Path
from typing import Literal

from proxemic.data.images import ImageSet, ImageSource, Splits
from proxemic.data.pixels import FilePixels
from proxemic.data.rows import RowGroups, number_names, query_flags
from proxemic.data.sources.listing import ENDINGS, examine_images, first_few, list_images
from proxemic.data.splits import check_fraction, hold_out
from proxemic.data.tables import IMAGE_COLUMNS, Row, SplitName
from proxemic.files import readable


@dataclass(frozen=True)
class OwnImages(ImageSource):
    """PNG, JPEG, WebP and BMP images in one folder per class, or named in a CSV or Parquet table.

    A folder holds class folders (with images at any depth), or folders `train`, `validation` (or `val`) and `test` of
    class folders. A table has the columns `path` (relative to the table's folder) and `label`, and optionally those of
    Open Metric Learning: `split`, `is_query`, `is_gallery`, `sequence`, `category`, and the box `x_1`, `y_1`, `x_2`,
    `y_2`; docs/own-tables.md describes them. Labels of any type are compared as text and numbered in its sorted order.

    Where no split is given, whole classes are held out by `split_seed`, as retrieval is evaluated on unseen classes,
    and a given split may not have a class on two sides. With `hold_out` set to images, it may, and some images of each
    class are held out: the model is evaluated on new images of the classes that it was trained on (a closed set). Where
    only train and validation are given, the latter is the test, and validation is held out from the former.

    Args:
        root: The folder or the table.
        test_fraction: Part of the classes, or of the images of each class, held out for the test where it is not given,
            0 to below 1; 0 for a final model on all classes, or where every image is given to train.
        validation_fraction: Part of the remaining ones held out for validation where it is not given, 0 to below 1.
        hold_out: Classes for an open set, images for a closed one.
        split_seed: Seed of the random split.
        strict: Refuse unreadable images; otherwise they are left out and counted in the notes.

    Raises:
        ValueError: If a fraction is out of range, or (on load) the images cannot be found, read or split.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for number in range(8):
    ...     (root / f"class {number // 2}").mkdir(exist_ok=True)
    ...     Image.new("L", (8, 8)).save(root / f"class {number // 2}" / f"{number}.png")
    >>> splits = OwnImages(root, validation_fraction=0.0).load()
    >>> len(splits.train), splits.train.num_classes, splits.validation, len(splits.test)
    (4, 2, None, 4)
    """

    root: Path | None = None
    test_fraction: float = 0.5
    validation_fraction: float = 0.5
    hold_out: Literal["classes", "images"] = "classes"
    split_seed: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("test_fraction", "validation_fraction"):
            check_fraction(name, getattr(self, name))
        if self.hold_out not in ("classes", "images"):
            raise ValueError(f"hold_out is {self.hold_out!r}, but it must be classes or images.")

    @property
    def has_test(self) -> bool:
        """Whether a test is held out; with a test_fraction of 0 there may still be one that is given."""
        return self.test_fraction > 0

    def load(self) -> Splits:
        root, rows, reading = self._read()
        parts, notes = self._given_parts(root, rows)
        train = image_set(parts["train"], flagged=rows[0].split is None)
        test = image_set(parts["test"]) if parts["test"] else None
        validation = image_set(parts["validation"]) if parts["validation"] else None
        try:
            if test is None:
                train, test = hold_out(train, self.test_fraction, self.split_seed, self.hold_out, name="test_fraction")
            if validation is None:
                train, validation = hold_out(train, self.validation_fraction, self.split_seed, self.hold_out)
        except ValueError as error:
            classes = len({row.label for row in rows})
            raise ValueError(
                f"{root} has {classes} classes in all, of {len(rows)} images, too few for its splits: {error}"
            ) from error
        for name, images in (("train", train), ("validation", validation), ("test", test)):
            _check_part(root, name, images)
        torn = _torn_sequences(train, validation, test) if self.hold_out == "images" else ()
        return Splits(train, validation, test, (*notes, *torn, *reading))

    def _given_parts(self, root: Path, rows: Sequence[Row]) -> tuple[dict[SplitName, list[Row]], tuple[str, ...]]:
        parts: dict[SplitName, list[Row]] = {"train": [], "validation": [], "test": []}
        for row in rows:
            parts[row.split or "train"].append(row)
        if not parts["train"]:
            raise ValueError(
                f"{root} gives splits but no readable training image: add some, give no splits, or load one split "
                "alone (load_split; --split of proxemic evaluate)."
            )
        for one, other in combinations(parts, 2):
            shared = sorted({row.label for row in parts[one]} & {row.label for row in parts[other]})
            if shared and self.hold_out == "classes":
                raise ValueError(
                    f"{root} has {len(shared)} classes in both {one} and {other} ({first_few(shared)}): move each to "
                    "one side, give no splits and let split_seed choose, or set hold_out to images to evaluate on new "
                    "images of classes that were trained on."
                )
        if rows[0].split is None or parts["test"] or self.test_fraction == 0:
            return parts, ()
        if not parts["validation"]:
            raise ValueError(
                f"{root} gives every image to train, so that there is no test: set test_fraction to 0 to train on all "
                "of them, or give no splits to have a test held out."
            )
        parts["test"], parts["validation"] = parts["validation"], []
        return parts, (
            f"{root} gives no test split: its validation split is the test, looked at once, "
            f"and validation_fraction of the training {self.hold_out} validates.",
        )

    def load_unsplit(self) -> tuple[ImageSet, tuple[str, ...]]:
        """Read all images as one set, to evaluate a model that has seen none of them; with notes as in `Splits`."""
        root, rows, notes = self._read()
        images = image_set(rows)
        _check_part(root, "only", images)
        return images, notes

    def gives_splits(self) -> bool:
        """Whether the folder or table says which images are for training, validation and test."""
        return self.root is not None and list_images(Path(self.root)).rows[0].split is not None

    def load_split(self, split: SplitName) -> tuple[ImageSet, tuple[str, ...]]:
        """Read the images that the folder or table assigns to a split, with notes; other splits may be empty.

        Where no image is assigned to test, the validation split is the test, as in `load`.
        """
        root, rows, notes = self._read()
        given = {row.split for row in rows}
        if None in given:
            raise ValueError(f"{root} gives no splits: load all of it (load_unsplit), or have it split (load).")
        wanted = "validation" if split == "test" and "test" not in given else split
        chosen = [row for row in rows if row.split == wanted]
        if not chosen:
            raise ValueError(f"{root} gives no image to {split}: its splits are {', '.join(sorted(map(str, given)))}.")
        images = image_set(chosen, flagged=wanted != "train")
        _check_part(root, wanted, images)
        called = f"its {wanted} split, as there is no test" if wanted != split else f"its {split} split"
        taken = f"{root} gives splits: {called}, {len(chosen):,} of {len(rows):,} images, is taken."
        return images, (taken, *notes)

    def _read(self) -> tuple[Path, list[Row], tuple[str, ...]]:
        if self.root is None:
            raise ValueError("data.root is missing: give a folder of class folders or a table (--data.root PATH).")
        root = Path(self.root)
        rows, notes = read_images(root, self.strict)
        counts = Counter(row.label for row in rows)
        if len(counts) == 1:
            raise ValueError(f"{root} has a single class, {next(iter(counts))!r}, but at least two are needed.")
        if max(counts.values()) == 1:
            raise ValueError(
                f"{root} has {len(counts)} classes with one image each, but images of one class are what is compared: "
                "give classes at least two images."
            )
        if lone := sorted(label for label, count in counts.items() if count == 1):
            notes.append(
                f"{len(lone)} classes have a single image, which a test cannot find a match for: {first_few(lone)}."
            )
        return root, rows, tuple(notes)


def read_images(root: Path, strict: bool, used: Sequence[str] = IMAGE_COLUMNS) -> tuple[list[Row], list[str]]:
    """List the images of a folder or table that can be decoded, with notes on other files and columns not `used`."""
    listing = list_images(root, used)
    examined, failures = examine_images(listing.rows)
    examples = first_few([f"{readable(path)} ({why})" for path, why in failures.items()])
    unreadable = f"{len(failures)} unreadable {'image' if len(failures) == 1 else 'images'}, {examples}"
    if strict and failures:
        raise ValueError(f"{unreadable}: mend or remove them, or set strict to false (leave out --strict).")
    if not examined:
        raise ValueError(f"{root} has no readable image: {unreadable}.")
    notes = [f"Left out: {unreadable}."] if failures else []
    if listing.ignored:
        notes.append(
            f"{len(listing.ignored)} files ignored, as they are in no class folder or end in none of "
            f"{', '.join(ENDINGS)}: {first_few([readable(path) for path in listing.ignored])}."
        )
    if listing.unused:
        notes.append(f"{root} has columns that are not used: {', '.join(listing.unused)}.")
    return [row for row, *_ in examined], notes


def image_set(rows: Sequence[Row], flagged: bool = True) -> ImageSet:
    """Make an image set of rows; with `flagged`, their flags say which are queries and which are in the gallery."""
    flags = query_flags([(row.is_query, row.is_gallery) for row in rows], [str(row.path) for row in rows])
    return ImageSet(
        FilePixels([row.path for row in rows], [row.box for row in rows]),
        *number_names([row.label for row in rows]),
        *(flags if flagged else (None, None)),
        sequences=RowGroups.from_names([row.sequence for row in rows]),
        categories=RowGroups.from_names([row.category for row in rows]),
    )


def _check_part(root: Path, name: str, images: ImageSet | None) -> None:
    if images is None:
        return
    if images.num_classes < 2:
        raise ValueError(f"{root} has {images.num_classes} class in its {name} split, but at least two are needed.")
    if name != "train" and not anything_to_find(images):
        raise ValueError(
            f"{root} has no query with another image of its class to find in its {name} split: add images, mind "
            "is_query, is_gallery and sequence, or change split_seed or the fractions."
        )


def anything_to_find(images: ImageSet) -> bool:
    """Whether any query has another image of its class, and of another sequence, in the gallery."""
    names = (None,) * len(images) if images.sequences is None else images.sequences.texts()
    # What is in no sequence is one of its own.
    kinds = [
        (label, place if name is None else name)
        for place, (label, name) in enumerate(zip(images.labels.tolist(), names, strict=True))
    ]
    queries = kinds if images.is_query is None else compress(kinds, images.is_query.tolist())
    gallery = set(kinds if images.is_gallery is None else compress(kinds, images.is_gallery.tolist()))
    of_class = Counter(label for label, _ in gallery)
    return any(of_class[kind[0]] > (kind in gallery) for kind in queries)


def _torn_sequences(*parts: ImageSet | None) -> tuple[str, ...]:
    sides = Counter(
        name
        for part in parts
        if part is not None and part.sequences is not None
        for name in {*part.sequences.texts()} - {None}
    )
    torn = sorted(str(name) for name, count in sides.items() if count > 1)
    note = (
        f"{len(torn)} sequences have images in more than one of training, validation and test ({first_few(torn)}), "
        "which makes the test too easy: give a column split that keeps each on one side."
    )
    return (note,) if torn else ()
