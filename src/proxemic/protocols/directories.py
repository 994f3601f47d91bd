"""Directories of results: whether one is new, holds the work that it is given for, or something else."""

from collections.abc import Collection
from pathlib import Path

from proxemic.errors import UserError


def is_begun(path: Path, marker: str, kind: str, leftovers: Collection[str] = ()) -> bool:
    """Whether a directory holds work that was begun, which the file ``marker`` describes; False if new or empty.

    A process that is killed before it writes ``marker`` leaves hidden or temporary files and ``leftovers``; anything
    else raises `UserError`.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, but --out needs a folder: choose another name.")
    if (path / marker).exists():
        return True
    names = [file.name for file in path.iterdir()] if path.exists() else []
    if any(not (name in leftovers or name.startswith(".") or name.endswith(".tmp")) for name in names):
        raise UserError(f"{path} holds something else than {kind}: choose a new or an empty folder for --out.")
    return False
