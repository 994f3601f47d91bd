"""Which images a folder or a table names, with which labels, before any is opened."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from proxemic.data.reading import UnreadableImageError, examine
from proxemic.data.tables import SPLITS, Row, SplitName, read_table
from proxemic.files import readable

Found = TypeVar("Found")

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Listing:
    """The images of a folder or table, and the other files met on the way."""

    rows: tuple[Row, ...]
    ignored: tuple[Path, ...] = ()


def list_images(root: Path) -> Listing:
    """List a folder of class folders, such folders in `train`, `validation` (or `val`) and `test`, or a table.

    Raises:
        ValueError: there is no such folder or table, its table is malformed, or it names no image.
    """
    if root.is_dir():
        listing = _list_folder(root)
    elif not root.exists():
        raise ValueError(f"{root} does not exist: give a folder of class folders, or a .csv or .parquet table.")
    elif root.suffix.lower() in (".csv", ".parquet"):
        listing = Listing(tuple(read_table(root)))
    else:
        raise ValueError(f"{root} is neither a folder of class folders nor a .csv or .parquet table.")
    if not listing.rows:
        raise ValueError(
            f"{root} has no images: put PNG, JPEG, WebP or BMP files into one folder a class, "
            "or name them in a table with the columns path and label."
        )
    return listing


def unreadable(rows: Sequence[Row]) -> dict[Path, str]:
    """Find the files that cannot be decoded, with reasons: better now than in the middle of training."""
    return look_at(rows, examine)[1]


def look_at(rows: Sequence[Row], look: Callable[[Path], Found]) -> tuple[list[tuple[Row, Found]], dict[Path, str]]:
    """Look at every file in threads, with a progress bar on terminals.

    Args:
        rows: the images.
        look: is given each path.

    Returns:
        What was found of each image that can be read, and why the others cannot.
    """

    def attempt(row: Row) -> Found | UnreadableImageError:
        try:
            return look(row.path)
        except UnreadableImageError as error:
            return error

    found: list[tuple[Row, Found]] = []
    failures: dict[Path, str] = {}
    with ThreadPoolExecutor() as pool:
        results = zip(rows, pool.map(attempt, rows), strict=True)
        for row, result in tqdm(results, "checking images", len(rows), leave=False, disable=None):
            if isinstance(result, UnreadableImageError):
                failures[row.path] = result.reason
            else:
                found.append((row, result))
    return found, failures


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
