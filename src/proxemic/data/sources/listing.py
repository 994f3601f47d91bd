"""List the images that folders, tables, patterns and lists of files name, without opening them."""

import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath, PurePosixPath

from tqdm import tqdm

from proxemic.data.formats.tables import CORNERS, IMAGE_COLUMNS, SPLITS, TABLES, Box, boxes_of, is_table, read_table
from proxemic.data.pixels import FilePixels
from proxemic.data.reading import UnreadableImageError, check_box, describe, examine
from proxemic.data.remote import open_filesystem, path_or_address, read_address, remote_errors, within
from proxemic.data.roots import as_root, roots_of
from proxemic.data.rows import Rows, join_spellings
from proxemic.errors import UserError
from proxemic.files import absolute_name, check_regular, on_disk, readable
from proxemic.image_formats import (
    FORMATS_TEXT,
    SYSTEM_FOLDERS,
    count_by_ending,
    is_hidden,
    is_picture_name,
    unread,
)

Size = tuple[int, int]
_TABLE = f"a table ({', '.join(TABLES)})"
_KINDS = f"a folder, {_TABLE}, an image, a pattern, or a .txt file with a path on each line"


def list_pictures(*sources: str | os.PathLike[str], missing: bool = False) -> Rows:
    """List the images that folders, tables, patterns and files name, in that order, each once, without opening them.

    The label of an image in a folder is the name of the subfolder that holds it, at any depth. Below folders `train`,
    `validation` and `test`, it is the name of the next subfolder, and a column `split` is added. Images in the folder
    itself have no label. A table has the column `path`, relative to its folder, and optionally `label`, a box (`x_1`,
    `y_1`, `x_2`, `y_2`), and further columns, which are kept as texts.

    Args:
        sources: Each a folder, a table (CSV or Parquet), an image, a pattern such as ``photos/*.jpg`` (``**`` is any
            folders), or a .txt file with a path on each line, relative to its folder. All of these, and the paths in
            tables and lists, may be URLs that fsspec supports, such as ``s3://bucket/photos``; ``s3://`` needs s3fs,
            ``gs://`` gcsfs.
        missing: List paths that do not exist, too, as images that cannot be read.

    Returns:
        Rows with `FilePixels` as their content. Folders that cannot be listed are in ``unreadable``.

    Raises:
        UserError: If a source does not exist (without ``missing``), or there are no images.
        ValueError: If a table is not valid.
    """
    named = [path_or_address(source) for source in sources]
    parts = [_list_address(place, missing) if isinstance(place, str) else _list(str(place), missing) for place in named]
    listed = _each_once(join_files(parts))
    if not len(listed) and not listed.unreadable:
        given = ", ".join(readable(str(source)) for source in sources)
        raise UserError(
            f"{given} has no images{unread(listed.ignored)}: give {FORMATS_TEXT} files, in a folder or named in a "
            "table."
        )
    return listed


def list_folder(folder: Path) -> Rows:
    """List the images of a folder as `list_pictures` does, but return empty rows if there are none."""
    return _each_once(_list_folder(folder))


def _each_once(rows: Rows) -> Rows:
    first: dict[tuple[str, Box | None], int] = {}  # through links and other names, too
    for row, picture in enumerate(identities(rows.pixels)):
        first.setdefault(picture, row)
    return rows if len(first) == len(rows) else rows.take([*first.values()])


def list_images(root: Path, known: Sequence[str] = IMAGE_COLUMNS) -> Rows:
    """List labelled images: a folder of class folders, such folders in `train`, `validation` and `test`, or a table.

    Images outside class folders are in ``ignored``.
    """
    if root.is_dir():
        listed = _list_folder(root)
        _check_split_folders(root, listed)
        loose = [row for row, label in enumerate(listed.labels) if label is None]
        others = {*listed.ignored, *(listed.pixels.paths[row] for row in loose)}
        kept = listed.take([row for row, label in enumerate(listed.labels) if label is not None])
        ignored = [path for path in files_below(root, {}) if path in others] if others else []
        listed = replace(kept, ignored=tuple(ignored))
    elif not root.exists():
        raise ValueError(f"{root} does not exist: give a folder of class folders, or {_TABLE}.")
    elif root.suffix.lower() == ".npy":
        raise ValueError(
            f"{root} holds vectors by its name, not images: use data proxemic.data.OwnVectors, as the recipe "
            "own-vectors does."
        )
    elif is_table(root):
        listed = read_picture_table(root, root.parent, known, ("path", "label"))
        listed.require("label")
        for name in ("is_query", "is_gallery"):
            listed.truths(name)
    else:
        raise ValueError(f"{root} is neither a folder of class folders nor {_TABLE}.")
    if not len(listed):
        for folder, why in listed.unreadable.items():
            raise ValueError(f"{folder} cannot be listed ({why}): give permission to read it.")
        loose = [path for path in listed.ignored if is_picture_name(path)]
        has = f"{count_by_ending(loose)}, but not in class folders" if loose else f"no images{unread(listed.ignored)}"
        raise ValueError(
            f"{root} has {has}: put {FORMATS_TEXT} files into one folder per class, or name them in a table with the "
            "columns path and label."
        )
    return listed


def examine_images(rows: Rows) -> tuple[Rows, list[tuple[str, Size]]]:
    """Decode every file once, in threads, to find damaged files before training.

    Return the readable rows, with the others in ``unreadable``. For each readable row, also return the format of its
    file, and the (width, height) of its box or else of the image. `ValueError` if a box exceeds its image.
    """

    def outcome(path: Path) -> tuple[str, Size] | UnreadableImageError:
        try:
            return examine(path)
        except UnreadableImageError as error:
            return error

    files: FilePixels = rows.pixels
    paths = [Path(path) for path in dict.fromkeys(files.paths)]  # several boxes may be of one file
    with ThreadPoolExecutor() as pool:
        outcomes = tqdm(pool.map(outcome, paths), "checking images", len(paths), leave=False, disable=None)
        examined = dict(zip(paths, outcomes, strict=True))
    facts: dict[int, tuple[str, Size]] = {}
    failures = {**rows.unreadable}
    for row, (path, box) in enumerate(zip(files.paths, files.boxes, strict=True)):
        image = examined[Path(path)]
        if isinstance(image, UnreadableImageError):
            failures[readable(path)] = image.reason
            continue
        kind, size = image
        if box is not None:
            try:
                check_box(box, size)
            except ValueError as error:
                raise ValueError(f"{rows.place(row)}: {error}, of {readable(path)}.") from error
            size = box[2] - box[0], box[3] - box[1]
        facts[row] = kind, size
    return replace(rows.take([*facts]), unreadable=failures), [*facts.values()]


def identities(files: FilePixels) -> list[tuple[str, Box | None]]:
    """Identify each image by its resolved path or URL, and its box."""
    real_folder = cache(os.path.realpath)  # resolving each file would take longer than listing them

    def real(path: Path | str) -> str:
        if isinstance(path, str):
            return path
        if os.path.islink(path):  # noqa: PTH114 - pathlib takes twice as long
            return os.path.realpath(path)
        folder, slash, name = str(path).rpartition(os.sep)
        return os.path.join(real_folder(folder or slash or os.curdir), name)  # noqa: PTH118

    return [(real(path), box) for path, box in zip(files.paths, files.boxes, strict=True)]


def roots_of_rows(rows: Rows) -> tuple[str, ...]:
    """Return the folders and URLs below which all images are."""
    return roots_of(rows.pixels.paths, rows.folders) if isinstance(rows.pixels, FilePixels) else rows.folders


def absolute(name: str) -> str:
    """Return an absolute path, or a URL unchanged."""
    if "://" in name:
        return name
    if ".." not in name:
        return absolute_name(name)
    path = Path(name).absolute()
    # Only the file system knows the parent folder of a link's target.
    return str(path.parent.resolve() / path.name if ".." in path.parts else path)


def join_files(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows of files."""
    if len(parts) == 1:
        return parts[0]
    paths = [path for part in parts for path in part.pixels.paths]
    return Rows.join(parts, FilePixels(paths, [box for part in parts for box in part.pixels.boxes]))


def read_picture_table(
    table: Path, folder: Path | str, known: Sequence[str] | None = None, needed: Sequence[str] = ("path",)
) -> Rows:
    """Read a table of images, whose paths are relative to a folder or a URL."""
    rows = read_table(table, known, needed)
    rows.require("path")
    pixels = FilePixels([within(folder, name) for name in rows.names], boxes_of(rows))
    return replace(rows.without(*CORNERS), pixels=pixels).with_texts(path=pixels.names)


def _list(source: str, missing: bool) -> Rows:
    path = on_disk(Path(source))
    if path.is_dir():
        return _list_folder(path)
    if path.exists():
        named = _list_named(path, path.parent)
        return list_files([path]) if named is None else named
    if glob.has_magic(source):
        found = glob.glob(source, recursive=True)  # noqa: PTH207 - pathlib knows no absolute patterns
        return list_files([Path(name) for name in _matches(source, found) if Path(name).is_file()])
    if missing:
        return list_files([path])
    raise UserError(f"{readable(source)} does not exist: give {_KINDS}.")


def _matches(pattern: str, found: Sequence[str]) -> list[str]:
    """Sort the matches of a pattern, without system folders that the pattern does not name."""
    named = {*PurePath(pattern).parts}
    return sorted(name for name in found if SYSTEM_FOLDERS.isdisjoint(map(str.lower, {*PurePath(name).parts} - named)))


def _list_address(source: str, missing: bool) -> Rows:
    """List the images at a URL; a table or list is copied first."""
    system, path = open_filesystem(source)
    with remote_errors(source):
        if system.isdir(path):
            found = sorted(system.find(path))
            inside = {name: PurePosixPath(name).relative_to(path.rstrip("/") or "/").parts for name in found}
            visible = [name for name in found if not any(map(is_hidden, inside[name]))]
            names = [system.unstrip_protocol(name) for name in visible]
            return _of_folder(system.unstrip_protocol(path), names, [inside[name] for name in visible])
        if glob.has_magic(path):
            return list_files([system.unstrip_protocol(name) for name in _matches(path, system.glob(path))])
        exists = system.exists(path)
        if not exists and not missing:
            raise UserError(f"{source} does not exist: give {_KINDS}.")
    if not exists or not (path.lower().endswith(".txt") or is_table(path)):
        return list_files([source])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / PurePosixPath(path).name
        copy.write_bytes(read_address(source))
        try:
            listed = _list_named(copy, source.rpartition("/")[0])
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), source)) from error
    assert listed is not None
    return replace(listed, places=None)  # which name the copy


def _list_named(file: Path, folder: Path | str) -> Rows | None:
    """List the images that a table or a list of paths names; None for another file.

    A table keeps all its columns except id, in which pandas or a gallery has numbered the rows.
    """
    if file.suffix.lower() == ".txt":
        check_regular(file)
        lines = file.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
        return list_files([within(folder, line.strip()) for line in lines if line.strip()])
    if not is_table(file):
        return None
    rows = read_picture_table(file, folder)
    if not rows.has("id"):
        return rows
    note = f"{file} has the column id, which is ignored: galleries number their rows themselves."
    return replace(rows.without("id"), notes=(*rows.notes, note))


def _list_folder(root: Path) -> Rows:
    unreadable: dict[Path, str] = {}
    listed = [*files_below(root, unreadable)]
    before = len(os.path.join(root, "")) if str(root) != "." else 0  # noqa: PTH118
    # A third of the time of relative_to.
    inside = [tuple(str(path)[before:].split(os.sep)) for path in listed]  # noqa: PTH206
    rows = _of_folder(root, listed, inside)
    return replace(rows, unreadable={readable(path): why for path, why in unreadable.items()})


def _of_folder(root: Path | str, listed: Sequence[Path | str], inside: Sequence[tuple[str, ...]]) -> Rows:
    """List the files of a folder, with the parts of their paths within it."""
    pairs = [*zip(listed, inside, strict=True)]
    pictures = [(path, parts) for path, parts in pairs if is_picture_name(parts[-1])]
    # Folders for splits hold class folders.
    has_splits = {parts[0].lower() for _, parts in pictures if len(parts) > 1} <= SPLITS.keys()
    level = 1 if has_splits else 0
    columns = {"label": [readable(parts[level]) if len(parts) > level + 1 else None for _, parts in pictures]}
    if has_splits and any(len(parts) > 1 for _, parts in pictures):
        columns["split"] = [SPLITS[parts[0].lower()] if len(parts) > 1 else None for _, parts in pictures]
    others = tuple(Path(path) for path, parts in pairs if not is_picture_name(parts[-1]))
    rows = replace(list_files([path for path, _ in pictures], **columns), ignored=others, folders=(as_root(root),))
    return join_spellings(rows, root)


def _check_split_folders(root: Path, listed: Rows) -> None:
    """Raise `ValueError` if some folders have names of splits, and others do not."""
    inside = [path.relative_to(root).parts for path in (*listed.pixels.paths, *listed.ignored)]
    folders = sorted({parts[0] for parts in inside if len(parts) > 1})
    named = [name for name in folders if name.lower() in SPLITS]
    if 1 < len(named) < len(folders):  # a single one may be a class, such as trains
        other = next(name for name in folders if name not in named)
        raise ValueError(
            f"{root} has folders for splits ({', '.join(named)}) and others ({other}): move the others away, or put "
            "all class folders into one folder."
        )


def list_files(paths: Sequence[Path | str], **columns: Sequence[str | None]) -> Rows:
    """Make rows of files, named by their paths, with further columns."""
    pixels = FilePixels(paths)
    return Rows.of(pixels, path=pixels.names, **columns)


def files_below(root: Path, unreadable: dict[Path, str]) -> Iterator[Path]:
    """Yield all files in a folder and those below it, sorted by name, except hidden ones.

    Links to folders elsewhere are followed. A link to a folder inside `root`, or to one that contains it, is yielded
    like a file, since the files in that folder are listed anyway. Folders that cannot be listed are added to
    `unreadable`, with the reason.
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
        here = Path(folder)
        yield from (here / name for name in sorted([*names, *back]) if not is_hidden(name))
