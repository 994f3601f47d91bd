"""The user's own images, from a folder of class folders or a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from proxemic.data.images import ImageSet, named_attributes
from proxemic.data.pixels import FilePixels
from proxemic.data.rows import RowGroups, number_names, query_flags
from proxemic.data.sources.listing import examine_images, first_few, list_images
from proxemic.data.sources.own_source import SPLIT_NAMES, OwnRows, OwnSource, check_classes
from proxemic.data.tables import IMAGE_COLUMNS, Row
from proxemic.files import readable
from proxemic.image_formats import ENDINGS


@dataclass(frozen=True)
class OwnImages(OwnSource):
    """JPEG, PNG, WebP, BMP, GIF and TIFF images in one folder per class, or named in a CSV or Parquet table.

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

    strict: bool = False

    def read(self) -> OwnRows:
        if self.root is None:
            raise ValueError("data.root is missing: give a folder of class folders or a table (--data.root PATH).")
        root = Path(self.root)
        rows, notes = read_images(root, self.strict)
        images = image_set(rows, flagged=False)
        splits = [SPLIT_NAMES.index(row.split) for row in rows if row.split is not None]  # all have one, or none has
        return OwnRows(
            images,
            torch.tensor(splits) if splits else None,
            lambda chosen: _flags([rows[place] for place in chosen.tolist()]),
            (*notes, *check_classes(root, images)),
        )

    def class_names(self) -> Sequence[str]:
        assert self.root is not None
        return sorted({row.label for row in list_images(Path(self.root)).rows})

    def gives_splits(self) -> bool:
        return self.root is not None and list_images(Path(self.root)).rows[0].split is not None


def read_images(root: Path, strict: bool, used: Sequence[str] = IMAGE_COLUMNS) -> tuple[list[Row], list[str]]:
    """List the images of a folder or table that can be decoded, with notes on other files and columns not `used`."""
    listing = list_images(root, used)
    examined, failures = examine_images(listing.rows)
    unreadable = "; ".join(
        f"{len(found)} unreadable {kind}{'s' * (len(found) > 1)}, "
        + first_few([f"{readable(path)} ({why})" for path, why in found.items()])
        for kind, found in (("folder", listing.unreadable), ("image", failures))
        if found
    )
    if strict and unreadable:
        raise ValueError(f"{unreadable}: mend or remove them, or set strict to false (leave out --strict).")
    if not examined:
        raise ValueError(f"{root} has no readable image: {unreadable}.")
    notes = [f"Left out: {unreadable}."] if unreadable else []
    if listing.ignored:
        notes.append(
            f"{len(listing.ignored)} files ignored, as they are in no class folder or end in none of "
            f"{', '.join(ENDINGS)}: {first_few([readable(path) for path in listing.ignored])}."
        )
    if listing.unused:
        notes.append(f"{root} has columns that are not used: {', '.join(listing.unused)}.")
    rows = _join_repeated([row for row, *_ in examined])
    if repeated := len(examined) - len(rows):
        notes.append(f"{root} names {repeated:,} of its images again: each image counts once.")
    return rows, notes


def _join_repeated(rows: Sequence[Row]) -> list[Row]:
    """Make one row of those that name the same picture; raise `ValueError` if they contradict each other."""
    joined: dict[str, Row] = {}
    for row in rows:
        first = joined.setdefault(row.picture, row)
        if first is row:
            continue
        for column in ("label", "split", "sequence", "category", "subclass"):
            one, other = getattr(first, column), getattr(row, column)
            if one != other:
                raise ValueError(
                    f"{row.place or readable(row.path)}: {column} is {other!r}, but {one!r} in "
                    f"{first.place or readable(first.path)}, which names the same image: keep one of the two."
                )
        joined[row.picture] = replace(
            first,
            is_query=_either(first.is_query, row.is_query),
            is_gallery=_either(first.is_gallery, row.is_gallery),
        )
    return list(joined.values())


def _either(one: bool | None, other: bool | None) -> bool | None:
    return other if one is None else one or bool(other)


def image_set(rows: Sequence[Row], flagged: bool = True) -> ImageSet:
    """Make an image set of rows; with `flagged`, their flags say which are queries and which are in the gallery."""
    return ImageSet(
        FilePixels([row.path for row in rows], [row.box for row in rows]),
        *number_names([row.label for row in rows]),
        *(_flags(rows) if flagged else (None, None)),
        sequences=RowGroups.from_names([row.sequence for row in rows]),
        categories=RowGroups.from_names([row.category for row in rows]),
        attributes=named_attributes(subclass=RowGroups.from_names([row.subclass for row in rows])),
    )


def _flags(rows: Sequence[Row]) -> tuple[Bool[Tensor, " rows"] | None, Bool[Tensor, " rows"] | None]:
    return query_flags([(row.is_query, row.is_gallery) for row in rows], [str(row.path) for row in rows])
