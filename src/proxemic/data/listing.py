"""Which images a folder or a table names, with which labels, before any is opened."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from proxemic.data.pixels import UnreadableImageError, describe, read_image
from proxemic.data.tables import SPLITS, Row, SplitName, read_table

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
    """Find the files that cannot be decoded, with reasons.

    All of each file is decoded, as a truncated JPEG has a sound header: better now than in the middle of training.
    """
    with ThreadPoolExecutor() as pool:
        reasons = pool.map(_verify, (row.path for row in rows))
        return {row.path: reason for row, reason in zip(rows, reasons, strict=True) if reason}


def _verify(path: Path) -> str | None:
    try:
        with Image.open(path) as image:
            if image.format == "JPEG":
                image.draft(image.mode, (1, 1))  # reads everything, but computes an eighth of the picture
                image.load()
                return None
        read_image(path)
    except UnreadableImageError as error:
        return error.reason
    except Exception as error:  # as in `read_image`
        return describe(error)
    return None


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
                rows.append(Row(path, folder.name, split))
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
