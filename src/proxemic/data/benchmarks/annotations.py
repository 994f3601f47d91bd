"""Build image sets from annotation files: every listed image must exist, and every class is in one split only."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from proxemic.data.benchmarks.benchmark import Official
from proxemic.data.images import ImageSet
from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows, first_few


@dataclass(frozen=True)
class Listed:
    """A listed image: its path below the data set's folder, its official class number, and its split."""

    path: str
    label: int
    test: bool
    query: bool | None = None
    category: str | None = None


def read_fields(path: Path, count: int, *, header: str | None = None, skip: int = 0) -> Iterator[list[str]]:
    """Read lines of ``count`` fields; the last may contain spaces. A header is the first line after ``skip`` lines."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[skip:]
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing: unpack the archive again.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: it is damaged.") from error
    if header is not None and (not lines or lines[0].split() != header.split()):
        raise ValueError(f"{path} has no header {header!r}: it is damaged, or another file.")
    start = 0 if header is None else 1
    for number, line in enumerate(lines[start:], start=skip + start + 1):
        fields = line.split(maxsplit=count - 1)
        if not fields:
            continue
        if len(fields) < count:
            raise ValueError(f"{path}, line {number}: {line!r} does not have {count} fields: the file is damaged.")
        yield [field.strip() for field in fields]


def whole_number(text: str, path: Path) -> int:
    """Read a number of an annotation file, or raise `ValueError`."""
    if not text.isdecimal():
        raise ValueError(f"{path} has {text!r} instead of a number: it is damaged.")
    return int(text)


def official_sets(
    folder: Path, rows: Sequence[Listed], class_names: Mapping[int, str], listing: Path, flaws: Sequence[str] = ()
) -> Official:
    """Make both splits from the images that exist, and list the missing ones as flaws."""
    unknown = {row.label for row in rows} - class_names.keys()
    if unknown or len({row.path for row in rows}) < len(rows):
        raise ValueError(f"{listing} has unknown classes, or images more than once: it is damaged.")
    shared = {row.label for row in rows if row.test} & {row.label for row in rows if not row.test}
    if shared:
        names = first_few([class_names[label] for label in sorted(shared)])
        raise ValueError(
            f"{listing} has {len(shared):,} classes in both training and test ({names}), but they must differ: it is "
            "damaged or shuffled."
        )
    outside = [row.path for row in rows if posixpath.isabs(row.path) or ".." in row.path.split("/")]
    if outside:
        raise ValueError(f"{outside[0]!r} leads out of {folder}: the annotations are damaged.")
    absent: list[str] = []
    present: set[str] = set()
    for parent in dict.fromkeys(posixpath.dirname(row.path) for row in rows):
        try:  # checking 120,000 images one by one takes long
            present.update(posixpath.join(parent, file.name) for file in (folder / parent).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            absent.append(parent)
    unlisted = sorted(set(class_names) - {row.label for row in rows})
    lacking = {
        f"classes without an image in {listing.name}": [class_names[label] for label in unlisted],
        "folders missing": absent,
        f"of {len(rows):,} images missing": [row.path for row in rows if row.path not in present],
    }
    flaws = [*(f"{len(names):,} {what} ({first_few(names)})" for what, names in lacking.items() if names), *flaws]
    train, test = (
        _image_set(folder, [row for row in rows if row.test == side and row.path in present], class_names)
        for side in (False, True)
    )
    return Official(train, test, tuple(flaws))


def _image_set(folder: Path, rows: Sequence[Listed], class_names: Mapping[int, str]) -> ImageSet:
    present, labels = torch.tensor([row.label for row in rows], dtype=torch.int64).unique(return_inverse=True)
    has_roles = bool(rows) and rows[0].query is not None
    columns: dict[str, list[str | None]] = {"category": [row.category for row in rows]}
    if has_roles:
        columns["is_query"] = [str(bool(row.query)) for row in rows]
        columns["is_gallery"] = [str(not row.query) for row in rows]
    described = Rows.of(FilePixels([folder / row.path for row in rows]), **columns)
    return ImageSet(described, labels, tuple(class_names[label] for label in present.tolist()))
