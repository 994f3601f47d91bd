"""Files that are whole or not there."""

import csv
import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from proxemic.errors import UserError

__all__ = ["check_stem", "read_json", "readable", "write_atomically", "write_csv", "write_json", "write_text"]


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it becomes ``path`` at the end, or is removed on failure.

    Args:
        path: The file; its folder is made if it is not there.

    Raises:
        UserError: If it cannot be written, above all because the disk is full.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> with write_atomically(folder / "note.txt") as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> [path.name for path in folder.iterdir()]
    ['note.txt']
    """
    # The process's number keeps apart two that write the same file, as a cache.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("r+b") as file:  # Windows flushes writable files only
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else str(error.strerror or error).lower()
        raise UserError(f"{path} could not be written: {reason}; free some space or check the folder.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def readable(name: str | os.PathLike[str]) -> str:
    r"""The name of a file or a class as text that any file and terminal takes: bytes that are not UTF-8 are escaped.

    >>> readable("Zo\udceb.jpg")
    'Zo\\udceb.jpg'
    """
    return str(name).encode("utf-8", "backslashreplace").decode("utf-8")


def check_stem(stem: Path) -> Path:
    """``stem``, if names of files can begin with it.

    Raises:
        UserError: If it is a folder.

    >>> check_stem(Path("pictures/gap"))
    PosixPath('pictures/gap')
    """
    if not stem.name or stem.is_dir():
        raise UserError(f"--out is the folder {stem}, but is how the names of files begin: try {stem / 'figure'}.")
    return stem


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises:
        UserError: If the file cannot be read, or is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise UserError(f"{path} cannot be read ({reason}): put the file back from a copy.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (it maps no names to values): put the file back from a copy.")
    return content


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        UserError: As `write_atomically`.
    """
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table, whole or not at all; None is an empty cell.

    Raises:
        UserError: As `write_atomically`.
    """
    with write_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` for people as much as for programs, whole or not at all.

    Raises:
        UserError: As `write_atomically`.
    """
    write_text(path, json.dumps(content, indent=2) + "\n")
