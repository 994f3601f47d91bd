"""Which images a folder or a table names, with which labels, before any is opened."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from proxemic.data.pixels.reading import UnreadableImageError, examine
from proxemic.data.pixels.stores import check_box
from proxemic.data.tables import IMAGE_COLUMNS, SPLITS, Row, SplitName, read_table, unused_columns
from proxemic.files import readable
from proxemic.image_formats import FORMATS_TEXT, count_by_ending, is_hidden, is_picture_name, unread

Size = tuple[int, int]
_VECTORS = "take data proxemic.data.OwnVectors, as the recipe own-vectors does"


@dataclass(frozen=True)
class Listing:
    """The images of a folder or table, its other files, and its columns that are not used."""

    rows: tuple[Row, ...]
    ignored: tuple[Path, ...] = ()
    unused: tuple[str, ...] = ()


def list_images(root: Path, used: Sequence[str] = IMAGE_COLUMNS) -> Listing:
    """List a folder of class folders, such folders in `train`, `validation` (or `val`) and `test`, or a table.

    Columns of a table that are not `used` are listed as unused.
    """
    if root.is_dir():
        listing = _list_folder(root)
    elif not root.exists():
        raise ValueError(f"{root} does not exist: give a folder of class folders, or a .csv or .parquet table.")
    elif root.suffix.lower() in (".npy", ".safetensors"):
        raise ValueError(f"{root} holds vectors by its name, not images: {_VECTORS}.")
    elif root.suffix.lower() in (".csv", ".parquet"):
        listing = Listing(tuple(read_table(root)), unused=unused_columns(root, used))
    else:
        raise ValueError(f"{root} is neither a folder of class folders nor a .csv or .parquet table.")
    if not listing.rows:
        loose = [path for path in listing.ignored if is_picture_name(path)]
        has = f"{count_by_ending(loose)}, but not in class folders" if loose else f"no images{unread(listing.ignored)}"
        raise ValueError(
            f"{root} has {has}: put {FORMATS_TEXT} files into one folder per class, or name them in a table with the "
            "columns path and label."
        )
    return listing


def first_few(names: Sequence[str]) -> str:
    """Name the first three, as examples in a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def examine_images(rows: Sequence[Row]) -> tuple[list[tuple[Row, str, Size]], dict[Path, str]]:
    """Decode every file once, in threads: better now than in the middle of training.

    Returns the readable images with the format of the file and the width and height, of the box where there is one, and
    why each other file cannot be read. A box that leaves its image is a `ValueError`.
    """

    def outcome(path: Path) -> tuple[str, Size] | UnreadableImageError:
        try:
            return examine(path)
        except UnreadableImageError as error:
            return error

    paths = list(dict.fromkeys(row.path for row in rows))  # several boxes may be of one file
    with ThreadPoolExecutor() as pool:
        outcomes = tqdm(pool.map(outcome, paths), "checking images", len(paths), leave=False, disable=None)
        examined = dict(zip(paths, outcomes, strict=True))
    readable_images: list[tuple[Row, str, Size]] = []
    failures: dict[Path, str] = {}
    for row in rows:
        image = examined[row.path]
        if isinstance(image, UnreadableImageError):
            failures[row.path] = image.reason
            continue
        kind, size = image
        if row.box is not None:
            try:
                check_box(row.box, size)
            except ValueError as error:
                raise ValueError(f"{row.place}: {error}, of {readable(row.path)}.") from error
            size = row.box[2] - row.box[0], row.box[3] - row.box[1]
        readable_images.append((row, kind, size))
    return readable_images, failures


def _list_folder(root: Path) -> Listing:
    inside = [folder for folder in _folders(root) if any(files_below(folder))]
    named = [folder.name for folder in inside if folder.name.lower() in SPLITS]
    if len(named) > 1 and len(named) < len(inside):  # one alone may be a class: trains, say
        other = next(folder.name for folder in inside if folder.name not in named)
        raise ValueError(
            f"{root} has folders for splits ({', '.join(named)}) and others ({other}): move the others away, or put "
            "all class folders into one folder."
        )
    parts: dict[Path, SplitName | None] = {root: None}
    if inside and len(named) == len(inside):
        parts = {folder: SPLITS[folder.name.lower()] for folder in inside}
    rows: list[Row] = []
    others = [
        path for folder in dict.fromkeys([root, *parts]) for path in sorted(folder.glob("[!.]*")) if path.is_file()
    ]
    for part, split in parts.items():
        for folder in _folders(part):
            for path in files_below(folder):
                if is_picture_name(path):
                    rows.append(Row(path, readable(folder.name), split))
                else:
                    others.append(path)
    return Listing(tuple(rows), tuple(others))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not is_hidden(path.name))


def files_below(root: Path) -> Iterator[Path]:
    """All files in a folder and those below it, in the order of their names, but for hidden ones."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not is_hidden(name))
        yield from (Path(folder, name) for name in sorted(names) if not is_hidden(name))
