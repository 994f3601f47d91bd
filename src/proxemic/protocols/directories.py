"""Directories of results: whether one is new, holds the work that it is given for, or something else."""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from proxemic.errors import UserError


def is_begun(path: Path, marker: str, kind: str, leftovers: Collection[str] = ()) -> bool:
    """Whether a directory holds work that was begun, so that it goes on; False for a new or an empty directory.

    Args:
        path: The directory, there or not.
        marker: The file in it that says what the work is.
        kind: What the work is called, such as ``a comparison``.
        leftovers: What a process that was killed before it wrote ``marker`` may have left, besides hidden files and
            temporary ones.

    Raises:
        UserError: If the path is a file, or the directory holds something else.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, but --out needs a folder: choose another name.")
    if (path / marker).exists():
        return True
    names = [file.name for file in path.iterdir()] if path.exists() else []
    if any(not (name in leftovers or name.startswith(".") or name.endswith(".tmp")) for name in names):
        raise UserError(f"{path} holds something else than {kind}: choose a new or an empty folder for --out.")
    return False


def new_directory(name: str) -> Path:
    """A directory under ``runs`` that bears a name, such as that of a recipe, and the time."""
    stem = name.removesuffix(".yaml").removesuffix(".yml").strip("./").replace("/", "-")
    return Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
