"""Files that are whole or not there."""

import csv
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from proxemic.errors import UserError

_LONGEST_NAME, _LONGEST_PATH, _DEEPEST = 255, 3800, 200  # bytes, but for the last: Linux, with room for our own names


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


def remove_stale_temporaries(folder: Path) -> None:
    """Remove what `write_atomically` left in a folder and below it where its process was killed.

    Call it before this process writes there. Files of other processes that run on this machine stay; keep processes of
    other machines out by a lock.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> (folder / f".note.txt.{os.getpid()}.tmp").touch()
    >>> remove_stale_temporaries(folder)
    >>> list(folder.iterdir())
    []
    """
    for path in folder.rglob(".*.tmp"):
        match = re.fullmatch(r"\..+\.(\d{1,9})\.tmp", path.name)
        # This process has not begun to write: in a container, the one before it had the same number.
        if match and (int(match[1]) == os.getpid() or not process_runs(int(match[1]))):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def process_runs(process: int) -> bool:
    """Whether there is such a process; Windows does not tell, but lets nobody remove a file that is open."""
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def check_folder(folder: Path, flag: str = "--out") -> None:
    """Raise `UserError` where a folder's name is longer, or lies deeper, than file systems allow.

    >>> check_folder(Path("runs/first"))
    """
    path = folder.absolute()
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    length = len(os.fsencode(path))
    said = (
        f"has a name of {longest:,} bytes, but at most {_LONGEST_NAME} are allowed"
        if longest > _LONGEST_NAME
        else f"is {length:,} bytes long, but at most {_LONGEST_PATH:,} are allowed"
        if length > _LONGEST_PATH
        else f"lies {len(path.parts):,} levels deep, but at most {_DEEPEST} are allowed"
        if len(path.parts) > _DEEPEST
        else None
    )
    if said:
        raise UserError(f"{flag} {str(folder)[:40]}… {said}: choose a shorter one.")


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
