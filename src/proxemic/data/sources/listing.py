"""Which images a folder or a table names, with which labels, before any is opened."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from proxemic.data.pixels.base import check_box
from proxemic.data.pixels.reading import UnreadableImageError, examine
from proxemic.data.tables import IMAGE_COLUMNS, SPLITS, Row, SplitName, read_table, unused_columns
from proxemic.files import readable

Result = TypeVar("Result")

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Listing:
    """The images of a folder or table, the other files met on the way, and the columns that are not used."""

    rows: tuple[Row, ...]
    ignored: tuple[Path, ...] = ()
    unused: tuple[str, ...] = ()


def list_images(root: Path, used: Sequence[str] = IMAGE_COLUMNS) -> Listing:
    """List a folder of class folders, such folders in `train`, `validation` (or `val`) and `test`, or a table.

    Args:
        root: The folder or the table.
        used: Columns of a table that the caller uses; the others are listed as unused.

    Raises:
        ValueError: If there is no such folder or table, its table is malformed, or it names no image.
    """
    if root.is_dir():
        listing = _list_folder(root)
    elif not root.exists():
        raise ValueError(f"{root} does not exist: give a folder of class folders, or a .csv or .parquet table.")
    elif root.suffix.lower() in (".csv", ".parquet"):
        listing = Listing(tuple(read_table(root)), unused=unused_columns(root, used))
    else:
        raise ValueError(f"{root} is neither a folder of class folders nor a .csv or .parquet table.")
    if not listing.rows:
        raise ValueError(
            f"{root} has no images: put PNG, JPEG, WebP or BMP files into one folder per class, "
            "or name them in a table with the columns path and label."
        )
    return listing


def first_few(names: Sequence[str], most: int = 3) -> str:
    """Name the first few, as examples in a message."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def find_unreadable(rows: Sequence[Row]) -> dict[Path, str]:
    """Find the files that cannot be decoded, with reasons: better now than in the middle of training.

    Raises:
        ValueError: If a box leaves its image.
    """
    examined, failures = examine_files(rows, examine)
    for row, (_, size) in examined:
        check_row_box(row, size)
    return failures


def check_row_box(row: Row, size: tuple[int, int]) -> None:
    """Raise `ValueError`, which names the row of the table, where its box leaves its image of this size."""
    if row.box is not None:
        try:
            check_box(row.box, size)
        except ValueError as error:
            raise ValueError(f"{row.place}: {error}, of {readable(row.path)}.") from error


def examine_files(
    rows: Sequence[Row], examine_file: Callable[[Path], Result]
) -> tuple[list[tuple[Row, Result]], dict[Path, str]]:
    """Call a function with every file once, in threads, with a progress bar on terminals.

    Returns:
        The result for each image that can be read, and why the others cannot.
    """

    def try_to_examine(path: Path) -> Result | UnreadableImageError:
        try:
            return examine_file(path)
        except UnreadableImageError as error:
            return error

    paths = list(dict.fromkeys(row.path for row in rows))  # several boxes may be of one file
    results: dict[Path, Result] = {}
    failures: dict[Path, str] = {}
    with ThreadPoolExecutor() as pool:
        outcomes = zip(paths, pool.map(try_to_examine, paths), strict=True)
        for path, outcome in tqdm(outcomes, "checking images", len(paths), leave=False, disable=None):
            if isinstance(outcome, UnreadableImageError):
                failures[path] = outcome.reason
            else:
                results[path] = outcome
    return [(row, results[row.path]) for row in rows if row.path in results], failures


def _list_folder(root: Path) -> Listing:
    inside = [folder for folder in _folders(root) if any(_files_below(folder))]
    named = [folder.name for folder in inside if folder.name.lower() in SPLITS]
    if len(named) > 1 and len(named) < len(inside):  # one alone may be a class: trains, say
        other = next(folder.name for folder in inside if folder.name not in named)
        raise ValueError(
            f"{root} has folders for splits ({', '.join(named)}) and others ({other}): move the others away, or put "
            "all class folders into one folder."
        )
    rows: list[Row] = []
    others = _loose_files(root)
    if inside and all(folder.name.lower() in SPLITS for folder in inside):
        for folder in inside:
            others += _loose_files(folder)
            _add_classes(_folders(folder), SPLITS[folder.name.lower()], rows, others)
    else:
        _add_classes(inside, None, rows, others)
    return Listing(tuple(rows), tuple(others))


def _add_classes(folders: Sequence[Path], split: SplitName | None, rows: list[Row], others: list[Path]) -> None:
    for folder in folders:
        for path in _files_below(folder):
            if path.suffix.lower() in ENDINGS:
                rows.append(Row(path, readable(folder.name), split))
            else:
                others.append(path)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _loose_files(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_file() and not path.name.startswith("."))


def _files_below(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
