"""Read and write files at URLs such as ``s3://bucket/photo.jpg`` with fsspec."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxemic.addresses import without_password
from proxemic.errors import UserError
from proxemic.files import on_disk, working_folder, write_atomically

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # more than one letter, as single letters are drives on Windows


def from_worker(error: Exception, text: str) -> str:
    """Return the message of an error that a `DataLoader` may have rebuilt from the traceback of its worker."""
    return (text.strip().splitlines() or [""])[-1].rpartition(f"{type(error).__name__}: ")[2]


class UnreachableError(UserError):
    """Raised for a URL that cannot be reached; the text is a whole sentence."""

    def __str__(self) -> str:
        return from_worker(self, super().__str__())


def is_address(name: object) -> bool:
    """Return whether a name is a URL rather than a path.

    >>> is_address("s3://bucket/a.jpg"), is_address("photos/a.jpg")
    (True, False)
    """
    return isinstance(name, str) and _SCHEME.match(name) is not None


def path_or_address(name: str | os.PathLike[str]) -> Path | str:
    """Return a `Path` for a path or ``file://…``, and any other URL as text; refuse an empty text."""
    if name == "":
        raise UserError("A path is empty: give one, such as . for the current folder.")
    if isinstance(name, str) and name.lower().startswith("file://"):
        return Path(open_filesystem(name)[1])
    return name if isinstance(name, str) and is_address(name) else Path(name)


def within(folder: Path | str, name: str) -> Path | str:
    """Resolve a name from a table or list: a URL, or a path relative to its folder."""
    if is_address(name):
        return path_or_address(name)
    return on_disk(folder / name) if isinstance(folder, Path) else f"{folder.rstrip('/')}/{name}"


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it; `UnreachableError` if it cannot be opened."""
    import fsspec.core

    with remote_errors(address):
        return fsspec.core.url_to_fs(address)


def read_address(address: str) -> bytes:
    """Read the file at a URL; `FileNotFoundError` if it is missing, `UnreachableError` for other failures."""
    system, path = open_filesystem(address)
    with remote_errors(address):
        return system.cat_file(path)


@contextmanager
def write_to(target: Path | str, folder: Path) -> Iterator[Path]:
    """Yield a temporary path; at the end, move its file to the target, a path or a URL.

    The target is complete or not written. For a URL, the file is first written to the local ``folder``.
    """
    if isinstance(target, Path):
        with write_atomically(target) as temporary:
            yield temporary
        return
    name = target.rpartition("/")[2]
    with working_folder(folder / name) as made:
        yield made / name
        system, path = open_filesystem(target)
        with remote_errors(target):
            system.makedirs(system._parent(path), exist_ok=True)
            system.put_file(str(made / name), path)


def remove_file(target: Path | str) -> None:
    """Remove a file if it exists."""
    if isinstance(target, Path):
        target.unlink(missing_ok=True)
        return
    system, path = open_filesystem(target)
    with remote_errors(target):
        if system.exists(path):
            system.rm_file(path)


@contextmanager
def remote_errors(address: str) -> Iterator[None]:
    """Turn errors of the block into an `UnreachableError`, except for a missing file."""
    try:
        yield
    except (FileNotFoundError, UserError):
        raise
    except Exception as error:  # of any class, depending on the library for the URL
        scheme = address.partition("://")[0]
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ImportError):
            package = next((word for word in why.split() if word.lower().endswith("fs")), error.name or scheme)
            why = f"{why}, by pip install {package}"
        raise UnreachableError(f"{without_password(address)} cannot be reached: {why}") from error
