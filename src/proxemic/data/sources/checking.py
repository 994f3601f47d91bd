"""Check a user's folder or table, and report its content and flaws."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from proxemic.data.rows import Rows
from proxemic.data.sources.listing import examine_images, list_images
from proxemic.data.sources.own_source import SPLIT_NAMES, given_splits
from proxemic.files import readable

_SHOWN = 10  # entries of each list


@dataclass(frozen=True)
class Duplicates:
    """Files with the same content and box, their labels (at most one can be right) and their splits."""

    paths: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...]

    def __str__(self) -> str:
        across = [
            f"ACROSS {what} {', '.join(names)}"
            for what, names in (("LABELS", self.labels), ("SPLITS", self.splits))
            if len(names) > 1
        ]
        return " = ".join(self.paths) + (f" ({'; '.join(across)})" if across else "")


@dataclass(frozen=True)
class DatasetReport:
    """Facts about a set of images; only readable images count, except in `unreadable` and `ignored`.

    Args:
        root: The folder or table.
        images: Number of images.
        classes: Number of classes.
        splits: Number of images and of classes of each given split.
        images_per_class: Minimum, median and maximum.
        single_image_classes: Classes with one image.
        shared_classes: Classes in more than one split.
        duplicates: Groups of files with the same content.
        formats: Number of images of each file format.
        widths: Minimum and maximum in pixels, of boxes if there are boxes.
        heights: The same of the heights.
        unreadable: Files that cannot be decoded and folders that cannot be listed, with reasons.
        ignored: Files outside class folders, or without the ending of a known format.
        unused: Columns of the table that are not used.
        notes: Further facts, one sentence each.
    """

    root: str
    images: int
    classes: int
    splits: dict[str, tuple[int, int]]
    images_per_class: tuple[int, float, int]
    single_image_classes: tuple[str, ...]
    shared_classes: tuple[str, ...]
    duplicates: tuple[Duplicates, ...]
    formats: dict[str, int]
    widths: tuple[int, int]
    heights: tuple[int, int]
    unreadable: dict[str, str]
    ignored: tuple[str, ...]
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        least, middle, most = self.images_per_class
        text = [
            f"{self.root}: {self.images:,} images of {self.classes:,} classes",
            *(f"  {name}: {images:,} images of {classes:,} classes" for name, (images, classes) in self.splits.items()),
            f"images per class: {least} to {most}, median {middle:g}",
            "formats: " + ", ".join(f"{name} {count:,}" for name, count in self.formats.items()),
            "sizes: {} to {} wide, {} to {} high".format(*self.widths, *self.heights),
            *self.notes,
        ]
        lists: dict[str, Sequence[object]] = {
            "unreadable images or folders": [f"{path}: {why}" for path, why in self.unreadable.items()],
            "classes with a single image": self.single_image_classes,
            "classes in more than one split": self.shared_classes,
            "groups of identical files": self.duplicates,
            "columns that are not used": self.unused,
            "other files, ignored": self.ignored,
        }
        for title, items in lists.items():
            if items:
                text += [f"{title}: {len(items):,}", *(f"  {item}" for item in items[:_SHOWN])]
            if len(items) > _SHOWN:
                text.append(f"  and {len(items) - _SHOWN:,} more")
        return text


def check(root: Path) -> DatasetReport:
    """Decode every image of a folder or table, in the layouts of `OwnImages`, and report content and flaws.

    Raises:
        ValueError: If there is no such folder or table, its table is malformed, or it has no readable image.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "cat").mkdir()
    >>> Image.new("L", (8, 9)).save(root / "cat" / "1.png")
    >>> check(root).formats
    {'PNG': 1}
    """
    rows, facts = examine_images(list_images(Path(root)))
    if not len(rows):
        path, reason = next(iter(rows.unreadable.items()))
        raise ValueError(f"{root} has {len(rows.unreadable)} images, but none is readable, such as {path}: {reason}.")
    formats, sizes = zip(*facts, strict=True)
    widths, heights = zip(*sizes, strict=True)
    labels, places = [str(label) for label in rows.labels], given_splits(rows)
    splits = [None] * len(rows) if places is None else [SPLIT_NAMES[place] for place in places.tolist()]
    counts, sides = Counter(labels), Counter(label for label, _ in {*zip(labels, splits, strict=True)})
    by_split = {
        name: [label for label, split in zip(labels, splits, strict=True) if split == name] for name in SPLIT_NAMES
    }
    return DatasetReport(
        root=readable(root),
        images=len(rows),
        classes=len(counts),
        splits={name: (len(own), len({*own})) for name, own in by_split.items() if own},
        images_per_class=(min(counts.values()), float(median(counts.values())), max(counts.values())),
        single_image_classes=tuple(sorted(label for label, count in counts.items() if count == 1)),
        shared_classes=tuple(sorted(label for label, count in sides.items() if count > 1)),
        duplicates=_duplicates(rows, labels, splits),
        formats=dict(Counter(formats).most_common()),
        widths=(min(widths), max(widths)),
        heights=(min(heights), max(heights)),
        unreadable={**rows.unreadable},
        ignored=tuple(map(readable, rows.ignored)),
        unused=rows.unused,
        notes=rows.notes,
    )


def _duplicates(rows: Rows, labels: Sequence[str], splits: Sequence[str | None]) -> tuple[Duplicates, ...]:
    files = [*zip(rows.pixels.paths, rows.pixels.boxes, strict=True)]
    facts = [(path.stat().st_size, box) for path, box in files]
    alike = Counter(facts)
    groups: dict[object, list[int]] = {}
    for row, (path, box) in enumerate(files):
        if alike[facts[row]] > 1:
            with path.open("rb") as file:
                groups.setdefault((hashlib.file_digest(file, "sha256").digest(), box), []).append(row)
    return tuple(
        Duplicates(
            tuple(readable(files[row][0]) for row in group),
            tuple(sorted({labels[row] for row in group})),
            tuple(sorted({name for row in group if (name := splits[row])})),
        )
        for group in groups.values()
        if len(group) > 1
    )
