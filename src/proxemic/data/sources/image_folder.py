"""The user's own images, from a folder of class folders or a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from proxemic.data.formats.tables import IMAGE_COLUMNS, unused_note
from proxemic.data.images import require_root
from proxemic.data.rows import Rows, first_few
from proxemic.data.sources.listing import examine_images, identities, list_images
from proxemic.data.sources.own_source import OwnSource
from proxemic.files import readable
from proxemic.image_formats import ENDINGS


@dataclass(frozen=True)
class OwnImages(OwnSource):
    """JPEG, PNG, WebP, BMP, GIF and TIFF images in one folder per class, or named in a CSV or Parquet table.

    A folder holds class folders (with images at any depth), or folders `train`, `validation` (or `val`) and `test` of
    class folders. A table has the columns `path` (relative to the table's folder) and `label`, and optionally those of
    Open Metric Learning: `split`, `is_query`, `is_gallery`, `sequence`, `category`, and the box `x_1`, `y_1`, `x_2`,
    `y_2`; docs/own-tables.md describes them. Labels of any type are compared as text and
    numbered in sorted order; labels that look the same are one.

    If no split is given, whole classes are held out by `split_seed`, as retrieval is evaluated on unseen classes. In a
    given split, each class must be on one side. With `hold_out` set to images, a class may be on several sides, and
    some images of each class are held out: the model is evaluated on new images of its training classes (a closed set).
    If only train and validation are given, the validation images are the test, and others are held out from the
    training images for validation.

    Args:
        root: The folder or the table.
        test_fraction: Fraction of the classes, or of the images of each class, held out for the test if no test is
            given, 0 to below 1; 0 for a final model on all classes, or if the given split has only training images.
        validation_fraction: Fraction of the remaining ones held out for validation if none is given, 0 to below 1.
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
    >>> splits = OwnImages(root, test_fraction=0.5, validation_fraction=0.0).load()
    >>> len(splits.train), splits.train.num_classes, splits.validation, len(splits.test)
    (4, 2, None, 4)
    """

    strict: bool = False

    def read_rows(self) -> Rows:
        return read_images(require_root(self.root, "a folder of class folders or a table"), self.strict)

    def class_names(self) -> Sequence[str]:
        assert self.root is not None
        return list_images(Path(self.root)).numbers("label")[1]

    def gives_splits(self) -> bool:
        return self.root is not None and list_images(Path(self.root)).has("split")


def read_images(root: Path, strict: bool, known: Sequence[str] = IMAGE_COLUMNS) -> Rows:
    """List the readable images of a folder or table, with notes on other files and on columns not `known`."""
    listed = list_images(root, known)
    rows, _ = examine_images(listed)
    unreadable = _unreadable(listed, rows)
    if strict and unreadable:
        raise ValueError(f"{unreadable}: mend or remove them, or set strict to false (leave out --strict).")
    if not len(rows):
        raise ValueError(f"{root} has no readable image: {unreadable}.")
    notes = [f"Left out: {unreadable}."] if unreadable else []
    if rows.ignored:
        notes.append(
            f"{len(rows.ignored)} files ignored, as they are not in a class folder or do not end in "
            f"{', '.join(ENDINGS)}: {first_few([readable(path) for path in rows.ignored])}."
        )
    notes += unused_note(root, rows)
    joined = _join_repeated(rows)
    if repeated := len(rows) - len(joined):
        notes.append(f"{root} names {repeated:,} of its images more than once: each image counts once.")
    return replace(joined, notes=tuple(notes))


def _unreadable(listed: Rows, rows: Rows) -> str:
    folders = [f"{path} ({why})" for path, why in listed.unreadable.items()]
    images = [f"{path} ({why})" for path, why in rows.unreadable.items() if path not in listed.unreadable]
    return "; ".join(
        f"{len(found)} unreadable {kind}{'s' * (len(found) > 1)}, {first_few(found)}"
        for kind, found in (("folder", folders), ("image", images))
        if found
    )


def _join_repeated(rows: Rows) -> Rows:
    """Merge rows that name the same image; raise `ValueError` if they contradict each other."""
    first: dict[object, int] = {}
    again = {row: of for row, key in enumerate(identities(rows.pixels)) if (of := first.setdefault(key, row)) != row}
    for column in ("label", "split", "sequence", "category", "subclass"):
        texts = rows.texts(column)
        for row, of in again.items():
            if texts[row] != texts[of]:
                raise ValueError(
                    f"{rows.place(row)}: {column} is {texts[row]!r}, but {texts[of]!r} in {rows.place(of)}, which "
                    "names the same image: keep one of the two."
                )
    if not again:
        return rows
    for name in filter(rows.has, ("is_query", "is_gallery")):
        known, texts = rows.truths(name).tolist(), rows.texts(name)
        for row, of in again.items():
            if known[row] > known[of]:
                known[of], texts[of] = known[row], texts[row]
        rows = rows.with_texts(**{name: texts})
    return rows.take([*first.values()])
