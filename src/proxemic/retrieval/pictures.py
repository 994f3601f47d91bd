"""Pictures that need no labels: of folders, tables, patterns and lists of files."""

import glob
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath

from proxemic.data import FilePixels
from proxemic.data.embeddings import RowLabels
from proxemic.data.embeddings.formats import read_row_table, read_safetensors_rows
from proxemic.data.pixels.roots import as_root, roots_of
from proxemic.data.remote import open_filesystem, path_or_address, read_address, remote_errors, within
from proxemic.data.sources.listing import files_below
from proxemic.data.sources.own_vectors import open_named_vectors
from proxemic.data.tables import SPLITS, Box, read_pictures
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.files import readable
from proxemic.image_formats import FORMATS_TEXT, SYSTEM_FOLDERS, is_hidden, is_picture_name, unread

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures in an order, and what is known of them.

    Args:
        pixels: Where they are read from; or vectors in their place.
        names: What each is known by: its path, with its box where it has one.
        labels: The label of each, or None where it has none.
        columns: Further columns, each with a text or None for each picture.
        ignored: Files that were found, but are no pictures by their names.
        folders: The folders that were listed.

    Raises:
        ValueError: If the parts differ in length.
    """

    pixels: FilePixels | Vectors
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    columns: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    ignored: tuple[Path, ...] = ()
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.pixels), len(self.names), len(self.labels), *map(len, self.columns.values())}
        if len(lengths) > 1:
            raise ValueError(f"pixels, names, labels and columns have lengths {sorted(lengths)}, but must have one.")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders and addresses below which all of the pictures lie; nothing for vectors."""
        return () if isinstance(self.pixels, Vectors) else roots_of(self.pixels.paths, self.folders)

    def stamps(self) -> list[tuple[str, int, int]]:
        """Of each its name, and size and time of its file, by which it is seen whether that is another now.

        A picture behind an address is known by its name alone.
        """
        known: dict[Path, tuple[int, int]] = {}
        if isinstance(self.pixels, Vectors):
            stamp = _stamp(Path(self.pixels.reader.name), known)
            return [(f"{name} {row}", *stamp) for name, row in zip(self.names, self.pixels.rows, strict=True)]
        return [(name, *_stamp(path, known)) for name, path in zip(self.names, self.pixels.paths, strict=True)]

    def select(self, places: Sequence[int]) -> "Pictures":
        """Those at some places, in that order."""
        return replace(
            self,
            pixels=self.pixels.select(places),
            names=tuple(self.names[place] for place in places),
            labels=tuple(self.labels[place] for place in places),
            columns={name: tuple(values[place] for place in places) for name, values in self.columns.items()},
        )


def _stamp(path: Path | str, known: dict[Path, tuple[int, int]]) -> tuple[int, int]:
    if isinstance(path, str):
        return -1, -1  # asking for each would take as long as reading it
    if path not in known:  # several boxes may be of one file
        try:
            status = path.stat()
            known[path] = status.st_size, status.st_mtime_ns
        except OSError:
            known[path] = -1, -1
    return known[path]


def absolute(name: str) -> str:
    """A path from the root; an address of another kind as it is."""
    if "://" in name:
        return name
    path = Path(name).absolute()
    # What lies above a link is only known to the file system.
    return str(path.parent.resolve() / path.name if ".." in path.parts else path)


def list_vectors(source: str | os.PathLike[str]) -> Pictures:
    """List the rows of a file of vectors, for a head alone: with labels, and names where it has them.

    Args:
        source: A .parquet, .safetensors or .npy file, as the recipe own-vectors takes.

    Raises:
        ValueError: If it is none.
    """
    path = Path(source)
    vectors = open_named_vectors(path)
    rows = read_row_table(path) if path.suffix.lower() == ".parquet" else RowLabels()
    if path.suffix.lower() == ".safetensors":
        rows = read_safetensors_rows(path)
    names = vectors.names or tuple(f"row {number}" for number in range(1, len(vectors) + 1))
    labels = rows.label_texts() or [None] * len(vectors)
    if len(labels) != len(vectors):
        raise ValueError(f"{path} has {len(labels):,} labels, but {len(vectors):,} vectors: write it anew.")
    return Pictures(vectors, names, tuple(labels))


def list_pictures(*sources: str | os.PathLike[str], missing: bool = False) -> Pictures:
    """List the pictures that folders, tables, patterns and files name, in that order, each once, before any is opened.

    The label of a picture in a folder is the name of the folder within it that holds it, at any depth, as `train` and
    `evaluate` have it, or in folders `train`, `validation` and `test` that of the folder below, with a column `split`;
    pictures that lie in the folder itself have none. A table has the column `path`, relative to its folder, and perhaps
    `label`, a box (`x_1`, `y_1`, `x_2`, `y_2`), and further columns, which are kept as texts.

    Args:
        sources: Each a folder, a .csv or .parquet table, a picture, a pattern such as ``photos/*.jpg`` (``**`` is any
            folders), or a .txt file with a path on each line, relative to its folder. All of these may be addresses
            that fsspec knows, such as ``s3://bucket/photos``, and the paths in tables and lists, too; ``s3://`` needs
            s3fs, ``gs://`` gcsfs.
        missing: Whether a path where there is nothing is listed, too, as a picture that cannot be read.

    Raises:
        UserError: If a source does not exist and is not to be listed, or there are no pictures.
        ValueError: If a table is not valid.
    """
    named = [path_or_address(source) for source in sources]
    parts = [_list_address(each, missing) if isinstance(each, str) else _list(str(each), missing) for each in named]
    listed = _join(parts)
    if not len(listed):
        given = ", ".join(readable(str(source)) for source in sources)
        raise UserError(
            f"{given} has no pictures{unread(listed.ignored)}: give {FORMATS_TEXT} files, in a folder or named in a "
            "table."
        )
    return listed


def _list(source: str, missing: bool) -> Pictures:
    path = Path(source)
    if path.is_dir():
        return _list_folder(path)
    if path.suffix.lower() in TABLES and path.exists():
        return _list_table(path, path.parent)
    if path.suffix.lower() == ".txt" and path.exists():
        return _list_lines(path, path.parent)
    if path.exists():
        return _of_files([path])
    if glob.has_magic(source):
        found = glob.glob(source, recursive=True)  # noqa: PTH207 - pathlib knows no absolute patterns
        return _of_files([Path(each) for each in _matches(source, found) if Path(each).is_file()])
    if missing:
        return _of_files([path])
    raise UserError(
        f"{readable(source)} does not exist: give a folder, a .csv or .parquet table, a picture, a pattern, or a .txt "
        "file with a path on each line."
    )


def _matches(pattern: str, found: Sequence[str]) -> list[str]:
    """Sort what a pattern matches, without folders of operating systems that it does not name itself."""
    named = {*PurePath(pattern).parts}
    return sorted(name for name in found if SYSTEM_FOLDERS.isdisjoint(map(str.lower, {*PurePath(name).parts} - named)))


def _list_address(source: str, missing: bool) -> Pictures:
    """List what is behind an address; a table or a list is read as a copy."""
    system, path = open_filesystem(source)
    suffix = PurePosixPath(path).suffix.lower()
    with remote_errors(source):
        if system.isdir(path):
            found = sorted(system.find(path))
            inside = [PurePosixPath(name).relative_to(path.rstrip("/") or "/").parts for name in found]
            visible = [place for place, parts in enumerate(inside) if not any(map(is_hidden, parts))]
            names = [system.unstrip_protocol(found[place]) for place in visible]
            return _of_folder(system.unstrip_protocol(path), names, [inside[place] for place in visible])
        if glob.has_magic(path):
            return _of_files([system.unstrip_protocol(name) for name in _matches(path, system.glob(path))])
        exists = system.exists(path)
        if not exists and not missing:
            raise UserError(
                f"{source} does not exist: give a folder, a .csv or .parquet table, a picture, a pattern, or a .txt "
                "file with a path on each line."
            )
    if suffix not in (*TABLES, ".txt") or not exists:
        return _of_files([source])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / PurePosixPath(path).name
        copy.write_bytes(read_address(source))
        above = source.rpartition("/")[0]
        try:
            return _list_lines(copy, above) if suffix == ".txt" else _list_table(copy, above)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), source)) from error


def _list_lines(file: Path, folder: Path | str) -> Pictures:
    lines = file.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
    return _of_files([within(folder, line.strip()) for line in lines if line.strip()])


def _list_folder(root: Path) -> Pictures:
    unreadable: dict[Path, str] = {}
    listed = [*files_below(root, unreadable)]
    pictures = _of_folder(root, listed, [path.relative_to(root).parts for path in listed])
    # Listed as if it were a picture, a folder is named among those that cannot be read, whatever is done with them.
    return _join([pictures, _of_files([*unreadable])]) if unreadable else pictures


def _of_folder(root: Path | str, listed: Sequence[Path | str], inside: Sequence[tuple[str, ...]]) -> Pictures:
    """Files of a folder, with the parts of their paths within it."""
    is_picture = [is_picture_name(parts[-1]) for parts in inside]
    paths = [path for path, known in zip(listed, is_picture, strict=True) if known]
    parts = [part for part, known in zip(inside, is_picture, strict=True) if known]
    # Folders for splits hold class folders, as in `OwnImages`.
    splits = {part[0].lower() for part in parts if len(part) > 1} <= SPLITS.keys()
    level = 1 if splits else 0
    labels = [readable(part[level]) if len(part) > level + 1 else None for part in parts]
    others = tuple(Path(path) for path, known in zip(listed, is_picture, strict=True) if not known)
    columns: dict[str, tuple[str | None, ...]] = {}
    if splits and any(len(part) > 1 for part in parts):
        columns = {"split": tuple(SPLITS[part[0].lower()] if len(part) > 1 else None for part in parts)}
    return replace(_of_files(paths, labels), columns=columns, ignored=others, folders=(as_root(root),))


def _list_table(table: Path, folder: Path | str) -> Pictures:
    paths: list[Path | str] = []
    boxes: list[Box | None] = []
    labels: list[str | None] = []
    columns: dict[str, list[str | None]] = {}
    for path, box, record in read_pictures(table):
        labels.append(record.pop("label", None))
        paths.append(within(folder, path))
        boxes.append(box)
        for name, text in record.items():
            columns.setdefault(name, []).append(text)
    pixels = FilePixels(paths, boxes)
    return _once(Pictures(pixels, pixels.names, tuple(labels), {name: tuple(each) for name, each in columns.items()}))


def _of_files(paths: Sequence[Path | str], labels: Sequence[str | None] | None = None) -> Pictures:
    pixels = FilePixels(paths)
    return _once(Pictures(pixels, pixels.names, (None,) * len(paths) if labels is None else tuple(labels)))


def _join(parts: Sequence[Pictures]) -> Pictures:
    if len(parts) == 1:
        return parts[0]
    files = [part.pixels for part in parts if isinstance(part.pixels, FilePixels)]
    pixels = FilePixels([path for each in files for path in each.paths], [box for each in files for box in each.boxes])
    columns = {
        name: tuple(text for part in parts for text in part.columns.get(name, (None,) * len(part)))
        for name in dict.fromkeys(name for part in parts for name in part.columns)
    }
    labels = tuple(label for part in parts for label in part.labels)
    ignored = tuple(path for part in parts for path in part.ignored)
    folders = tuple(folder for part in parts for folder in part.folders)
    return _once(Pictures(pixels, pixels.names, labels, columns, ignored, folders))


def _once(pictures: Pictures) -> Pictures:
    """Keep the first of those that are the same file and box, through links and other names, too."""
    assert isinstance(pictures.pixels, FilePixels)
    first: dict[tuple[str, Box | None], int] = {}
    for place, (path, box) in enumerate(zip(pictures.pixels.paths, pictures.pixels.boxes, strict=True)):
        first.setdefault((path if isinstance(path, str) else os.path.realpath(path), box), place)
    return pictures if len(first) == len(pictures) else pictures.select([*first.values()])
