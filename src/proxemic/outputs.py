"""Refuse outputs that would overwrite an input, or a file of another kind."""

import csv
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.files import check_regular, read_json

MADE_BY = "proxemic"
"""The text that marks our files: the generator of HTML pages, and the software of PNG files."""

GALLERY = "proxemic_gallery"
"""The key of the metadata of a Parquet file that holds a gallery."""

_HEAD = 4096  # bytes in which text files are recognised


def check_output(
    path: str | os.PathLike[str] | None,
    is_such: Callable[[Path], bool],
    read: Iterable[object] = (),
    *,
    given_as: str = "",
) -> None:
    """Raise `UserError` if a file exists that is among the inputs ``read``, or is not of the kind to be written.

    Call it before the work takes minutes. An empty file may be overwritten. URLs are not checked.
    """
    if path is None or (isinstance(path, str) and "://" in path):
        return
    path = Path(path)
    check_regular(path)
    if not path.exists() or not path.stat().st_size:
        return
    name = f"{given_as} {path}".strip()
    if any(Path(str(item)).exists() and path.samefile(str(item)) for item in read):
        raise UserError(f"{name} is read by this command: choose another name.")
    try:
        such = is_such(path)
    except Exception:  # a library's error about a file of another kind
        such = False
    if not such:
        raise UserError(f"{name} exists and holds something else, which would be lost: choose another name.")


def check_csv(path: str | os.PathLike[str] | None, columns: tuple[str, ...], given_as: str = "The table") -> None:
    """Raise `UserError` unless a table is a .csv file and would overwrite nothing but such a table."""
    if path is not None and Path(path).suffix.lower() != ".csv":
        raise UserError(f"{given_as} is {path}, but must end in .csv.")
    check_output(path, has_columns(columns), given_as=given_as)


def is_page(path: Path) -> bool:
    """Return whether a file is one of our pages."""
    return f'<meta name="generator" content="{MADE_BY}">'.encode() in _head(path)


def is_picture(path: Path) -> bool:
    """Return whether a PNG file is one of our contact sheets or plots, not a photograph."""
    from PIL import Image

    with Image.open(path, formats=["PNG"]) as image:
        return str(image.info.get("Software", "")).startswith((MADE_BY, "Matplotlib"))


def is_embeddings(path: Path) -> bool:
    """Return whether a file holds embeddings as we write them, not a model, a gallery or a table."""
    if path.suffix.lower() == ".npy":
        import numpy as np

        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array.ndim == 2 and array.dtype.kind == "f"
    schema = _schema(path)
    return "embedding" in schema.names and GALLERY.encode() not in (schema.metadata or {})


def is_gallery(path: Path) -> bool:
    """Return whether a Parquet file holds a gallery."""
    return GALLERY.encode() in (_schema(path).metadata or {})


def has_columns(*starts: tuple[str, ...]) -> Callable[[Path], bool]:
    """Return a function that tells whether the first columns of a CSV table are one of these groups of names."""

    def check(path: Path) -> bool:
        header = next(csv.reader([_head(path).decode(errors="replace").splitlines()[0]]))
        return any((*header[: len(names)],) == names for names in starts)

    return check


def has_keys(*keys: str) -> Callable[[Path], bool]:
    """Return a function that tells whether a JSON file has one of these keys."""
    return lambda path: any(key in read_json(path) for key in keys)


def is_table(path: Path, *, columns: tuple[tuple[str, ...], ...], keys: tuple[str, ...]) -> bool:
    """Return whether a file is a table: CSV with one of these groups of first columns, JSON with a key, or Markdown."""
    if path.suffix.lower() == ".json":
        return has_keys(*keys)(path)
    if path.suffix.lower() == ".csv":
        return has_columns(*columns)(path)
    lines = _head(path).decode(errors="replace").splitlines()
    return any(line.startswith("| ") for line in lines[:1] + (lines[2:3] if lines[1:2] == [""] else []))


is_evaluation = partial(is_table, columns=(("metric",), ("category",)), keys=("chance", "models"))
"""Whether a file is a table of `proxemic.evaluate`."""

is_verification = partial(is_table, columns=(("set",),), keys=("sets",))
"""Whether a file is a table of `proxemic.verify`."""


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _schema(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_schema(path)
