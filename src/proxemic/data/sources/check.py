"""What is in a user's folder or table, and what is wrong with it."""

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from proxemic.data.pixels.reading import examine
from proxemic.data.sources.listing import check_row_box, examine_files, list_images
from proxemic.data.tables import Box, Row
from proxemic.files import readable


@dataclass(frozen=True)
class Duplicates:
    """Files with the same content, to the byte, and the same box where they have one.

    Args:
        paths: The files, two or more.
        labels: Their different labels; more than one means that at least one is wrong.
        splits: Their different splits; more than one leaks from training to the test.
    """

    paths: tuple[str, ...]
    labels: tuple[str, ...]
    splits: tuple[str, ...]


@dataclass(frozen=True)
class DatasetReport:
    """Facts about a set of images; only readable images count, except in `unreadable` and `ignored`.

    Args:
        root: The folder or table.
        images: Number of images.
        classes: Number of classes.
        splits: Images and classes of each split that is given.
        images_per_class: Least, median and most.
        single_image_classes: Classes with one image.
        shared_classes: Classes in more than one split.
        duplicates: Groups of files with the same content.
        formats: Number of images of each file format.
        widths: Least and most, in pixels, of the boxes where there are some.
        heights: Least and most, in pixels.
        unreadable: Files that cannot be decoded, with reasons.
        ignored: Files that are in no class folder, or not of a known format by name.
        unused: Columns of the table that are not used.
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

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Give the report as lines of text."""
        least, middle, most = self.images_per_class
        text = [f"{self.root}: {self.images:,} images of {self.classes:,} classes"]
        text += [
            f"  {name}: {images:,} images of {classes:,} classes" for name, (images, classes) in self.splits.items()
        ]
        text.append(f"images per class: {least} to {most}, median {middle:g}")
        text.append("formats: " + ", ".join(f"{name} {count:,}" for name, count in self.formats.items()))
        text.append("sizes: {} to {} wide, {} to {} high".format(*self.widths, *self.heights))
        text += _format_list("unreadable images", [f"{path}: {why}" for path, why in self.unreadable.items()])
        text += _format_list("classes with a single image", self.single_image_classes)
        text += _format_list("classes in more than one split", self.shared_classes)
        text += _format_list("groups of identical files", [_format_duplicates(group) for group in self.duplicates])
        text += _format_list("columns that are not used", self.unused)
        return text + _format_list("other files, ignored", self.ignored)


def check(root: Path) -> DatasetReport:
    """Decode every image of a folder or table, in the layouts `OwnImages` reads, and report what is there.

    Raises:
        ValueError: If there is no such folder or table, its table is malformed, or it has no readable image.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "cat").mkdir()
        >>> Image.new("L", (8, 9)).save(root / "cat" / "1.png")
        >>> print(*check(root).lines()[1:3], sep="; ")
        images per class: 1 to 1, median 1; formats: PNG 1
    """
    listing = list_images(Path(root))
    examined, unreadable = examine_files(listing.rows, _examine)
    failures = {readable(path): reason for path, reason in unreadable.items()}
    if not examined:
        path, reason = next(iter(failures.items()))
        raise ValueError(f"{root} has {len(failures)} images, but none is readable, such as {path}: {reason}.")
    for row, contents in examined:
        check_row_box(row, contents.size)
    rows = [row for row, _ in examined]
    sizes = [contents.size if row.box is None else _size(row.box) for row, contents in examined]
    counts = Counter(row.label for row in rows)
    splits_of: dict[str, set[str]] = {}
    for row in rows:
        splits_of.setdefault(row.label, set()).add(row.split or "")
    return DatasetReport(
        root=readable(root),
        images=len(rows),
        classes=len(counts),
        splits=_splits(rows),
        images_per_class=(min(counts.values()), float(median(counts.values())), max(counts.values())),
        single_image_classes=tuple(sorted(label for label, count in counts.items() if count == 1)),
        shared_classes=tuple(sorted(label for label, splits in splits_of.items() if len(splits) > 1)),
        duplicates=_duplicates([(row, contents.digest) for row, contents in examined]),
        formats=dict(Counter(contents.format for _, contents in examined).most_common()),
        widths=(min(width for width, _ in sizes), max(width for width, _ in sizes)),
        heights=(min(height for _, height in sizes), max(height for _, height in sizes)),
        unreadable=failures,
        ignored=tuple(map(readable, listing.ignored)),
        unused=listing.unused,
    )


@dataclass(frozen=True)
class _Contents:
    format: str
    size: tuple[int, int]
    digest: bytes


def _examine(path: Path) -> _Contents:
    kind, size = examine(path)
    with path.open("rb") as file:
        return _Contents(kind, size, hashlib.file_digest(file, "sha256").digest())


def _size(box: Box) -> tuple[int, int]:
    return box[2] - box[0], box[3] - box[1]


def _splits(rows: list[Row]) -> dict[str, tuple[int, int]]:
    labels: dict[str, list[str]] = {}
    for row in rows:
        if row.split:
            labels.setdefault(row.split, []).append(row.label)
    order = ("train", "validation", "test")
    return {name: (len(labels[name]), len(set(labels[name]))) for name in order if name in labels}


def _duplicates(digests: list[tuple[Row, bytes]]) -> tuple[Duplicates, ...]:
    groups: dict[tuple[bytes, Box | None], list[Row]] = {}
    for row, digest in digests:
        groups.setdefault((digest, row.box), []).append(row)
    return tuple(
        Duplicates(
            tuple(readable(row.path) for row in group),
            tuple(sorted({row.label for row in group})),
            tuple(sorted({row.split for row in group if row.split})),
        )
        for group in groups.values()
        if len(group) > 1
    )


def _format_duplicates(group: Duplicates) -> str:
    across = [
        f"ACROSS {what} {', '.join(names)}"
        for what, names in (("LABELS", group.labels), ("SPLITS", group.splits))
        if len(names) > 1
    ]
    return " = ".join(group.paths) + (f" ({'; '.join(across)})" if across else "")


def _format_list(title: str, items: tuple[str, ...] | list[str], most: int = 10) -> list[str]:
    if not items:
        return []
    shown = [f"  {item}" for item in items[:most]]
    return [f"{title}: {len(items):,}", *shown, *([f"  and {len(items) - most:,} more"] if len(items) > most else [])]
