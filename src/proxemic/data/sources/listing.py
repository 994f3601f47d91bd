"""Which images a folder or a table names, with which labels, before any is opened."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from proxemic.data.pixels.reading import UnreadableImageError, describe, examine
from proxemic.data.pixels.stores import check_box
from proxemic.data.tables import IMAGE_COLUMNS, SPLITS, Row, read_table, unused_columns
from proxemic.files import readable
from proxemic.image_formats import FORMATS_TEXT, count_by_ending, is_hidden, is_picture_name, unread

Size = tuple[int, int]
_VECTORS = "take data proxemic.data.OwnVectors, as the recipe own-vectors does"


@dataclass(frozen=True)
class Listing:
    """The images of a folder or table, its other files, its columns that are not used, and folders not listed."""

    rows: tuple[Row, ...]
    ignored: tuple[Path, ...] = ()
    unused: tuple[str, ...] = ()
    unreadable: Mapping[Path, str] = field(default_factory=dict)


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
    if not listing.rows and listing.unreadable:
        folder, why = next(iter(listing.unreadable.items()))
        raise ValueError(f"{readable(folder)} cannot be listed ({why}): give permission to read it.")
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
    unreadable: dict[Path, str] = {}
    files = [(path, path.relative_to(root).parts) for path in files_below(root, unreadable)]
    inside = list(dict.fromkeys(parts[0] for _, parts in files if len(parts) > 1))
    named = [name for name in inside if name.lower() in SPLITS]
    if len(named) > 1 and len(named) < len(inside):  # one alone may be a class: trains, say
        other = next(name for name in inside if name not in named)
        raise ValueError(
            f"{root} has folders for splits ({', '.join(named)}) and others ({other}): move the others away, or put "
            "all class folders into one folder."
        )
    level = 1 if inside and len(named) == len(inside) else 0  # where the class folders are
    rows: list[Row] = []
    others: list[Path] = []
    for path, parts in files:
        if len(parts) > level + 1 and is_picture_name(path):
            rows.append(Row(path, readable(parts[level]), SPLITS[parts[0].lower()] if level else None))
        else:
            others.append(path)
    return Listing(tuple(rows), tuple(others), unreadable=unreadable)


def files_below(root: Path, unreadable: dict[Path, str]) -> Iterator[Path]:
    """Yield all files in a folder and those below it, sorted by name, except hidden ones.

    Links to folders elsewhere are followed. A link to a folder inside `root`, or around it, is yielded like a file,
    since the files in that folder are listed anyway. Folders that cannot be listed are added to `unreadable`, with the
    reason.
    """
    listed = {root.resolve()}
    around = {*root.resolve().parents}

    def leads_back(path: Path) -> bool:
        target = path.resolve()
        if target in around or not listed.isdisjoint((target, *target.parents)):
            return True
        listed.add(target)
        around.update(target.parents)
        return False

    def fail(error: OSError) -> None:
        unreadable[Path(error.filename)] = describe(error)

    for folder, subfolders, names in os.walk(root, onerror=fail, followlinks=True):
        visible = sorted(name for name in subfolders if not is_hidden(name))
        back = {name for name in visible if Path(folder, name).is_symlink() and leads_back(Path(folder, name))}
        subfolders[:] = [name for name in visible if name not in back]
        yield from (Path(folder, name) for name in sorted([*names, *back]) if not is_hidden(name))
