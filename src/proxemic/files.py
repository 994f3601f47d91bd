"""Write files atomically, read JSON, and show file names safely."""

import csv
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from proxemic.errors import UserError, is_out_of_memory

_LONGEST_NAME, _LONGEST_PATH = 255, 3800  # bytes: the limits of Linux, with room for our own names
_DAY = 86_400  # seconds


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file next to ``path``, which replaces ``path`` at the end and is removed on failure.

    The folder is created if need be. Temporary files that killed processes left in it are removed. A full disk, or any
    other `OSError`, becomes a `UserError`; so does a ``path`` that is a folder, a pipe or a device.
    """
    temporary = _temporary(path, "tmp")
    try:
        with write_errors(path):
            check_regular(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path.parent)
            # A link of this name, by which another user would choose what is overwritten, is not followed.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            os.close(os.open(temporary, flags, 0o666))
            yield temporary
            with temporary.open("r+b") as file:  # Windows flushes writable files only
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to ``target``, remove it on exit, and remove the folders of killed processes."""
    target = target.absolute()
    folder = _temporary(target, "work")
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        with write_errors(target):
            _remove_stale(folder.parent)  # first, so that a process killed at any moment leaves one folder at most
            folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not empty if something was written there
            for parent in made:
                parent.rmdir()


_MACHINE, _PROCESS = f"{zlib.crc32(platform.node().encode()):08x}", secrets.token_hex(4)
_TEMPORARY = re.compile(r"\..*\.([0-9a-f]{8})([0-9a-f]{8})[0-9a-f]{8}\.(\d{1,9})\.(?:tmp|work)")


def _temporary(path: Path, ending: str) -> Path:
    """Return a new path next to ``path``; its name states the machine and the process that use it."""
    unique = _MACHINE + _PROCESS + secrets.token_hex(4)
    return path.with_name(f".{path.name[:50]}.{unique}.{os.getpid()}.{ending}")


def _is_stale(path: Path, *, locked: bool = False) -> bool:
    """Return whether a path is the temporary file or folder of a process that was killed.

    Nothing tells whether a process of another machine still runs: its files are stale after a day without a change, or
    if the folder is ``locked``.
    """
    if (match := _TEMPORARY.fullmatch(path.name)) is None:
        return False
    machine, process, number = match[1], match[2], int(match[3])
    if not locked and machine != _MACHINE:
        return path.suffix == ".tmp" and time.time() - path.stat().st_mtime > _DAY
    # In a container, a predecessor may have had the number of this process.
    return process != _PROCESS if number == os.getpid() else not process_runs(number)


def _remove_stale(folder: Path) -> None:
    with suppress(OSError):  # a folder need not be readable to be written to
        for path in folder.iterdir():
            with suppress(OSError):
                if _is_stale(path):
                    shutil.rmtree(path) if path.suffix == ".work" else path.unlink()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block, such as a full disk, into a `UserError` about the writing of ``path``."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else (error.strerror or "").lower() or str(error)
        raise UserError(f"{path} could not be written: {reason}; free some space or check the folder.") from error


def check_regular(path: Path) -> None:
    """Raise `UserError` for a folder, a pipe or a device: reading a pipe would wait, and a device may never end."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a pipe, a device or a socket"
        raise UserError(f"{path} is not a regular file but {what}: give the path of a file.")


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any error of a library that reads a file in the block into a `ValueError`, one sentence about the file.

    Errors of our own pass unchanged, since they name the file, and so does a lack of memory. Anything but a regular
    file is refused.
    """
    check_regular(path)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or (isinstance(error, ValueError) and str(error).startswith(str(path))):
            raise
        why = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        raise ValueError(f"{path} is not a sound {kind} file ({why}): write it anew.") from error


def may_not_be_read(path: Path) -> bool:
    """Return whether this user lacks the permission to read a file; libraries report that as damage."""
    try:
        if path.is_file():
            path.open("rb").close()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def remove_stale_temporaries(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder and its subfolders.

    Files of other running processes of this machine stay; keep processes of other machines out by a lock.
    """
    for path in folder.rglob(".*.tmp"):
        with suppress(OSError):
            if _is_stale(path, locked=True):
                path.unlink()


def process_runs(process: int) -> bool:
    """Return whether a process runs; always False on Windows, which cannot tell but refuses to remove open files."""
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def check_folder(folder: Path) -> None:
    """Raise `UserError` if the path of ``--out`` is longer than file systems allow."""
    path = folder.absolute()
    for size, most, what in (
        (max(len(os.fsencode(part)) for part in path.parts), _LONGEST_NAME, "has a name of {:,} bytes"),
        (len(os.fsencode(path)), _LONGEST_PATH, "is {:,} bytes long"),
    ):
        if size > most:
            said = f"{what.format(size)}, but at most {most:,} are allowed"
            raise UserError(f"--out {str(folder)[:40]}… {said}: choose a shorter one.")


def readable(name: str | os.PathLike[str]) -> str:
    r"""Escape bytes that are not UTF-8 in the name of a file or a class, so that it can be written and printed.

    >>> readable("Zo\udceb.jpg")
    'Zo\\udceb.jpg'
    """
    return str(name).encode("utf-8", "backslashreplace").decode("utf-8")


# Characters that move the cursor or change colours, lines or the direction of text, and bytes that are not text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape characters that would control a terminal.

    >>> printable("\x1b[31mred\n")
    '\\x1b[31mred\\n'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


_NUMBERS = re.compile(r"[-+]?(?:[\d.]+(?:e[-+]?\d+)?|inf)(?: (?:±|to) [-+]?[\d.]+)?%?")  # also with an interval


def spreadsheet_cell(value: Any) -> Any:
    """Quote a text that a spreadsheet would evaluate as a formula.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell("-0.5"), spreadsheet_cell("-1.0 to 0.5"), spreadsheet_cell(-0.5)
    ("'=1+1", '-0.5', '-1.0 to 0.5', -0.5)
    """
    if not isinstance(value, str) or value[:1] not in ("=", "+", "-", "@"):
        return value
    return value if _NUMBERS.fullmatch(value) else f"'{value}"


def absolute_name(name: str) -> str:
    """Return `os.path.abspath` of a name, much faster for names without dots and empty parts, as nearly all are.

    >>> absolute_name("/photos/a.jpg"), absolute_name("/photos/../a.jpg")
    ('/photos/a.jpg', '/a.jpg')
    """
    if os.sep != "/" or "//" in name or "/." in name or name[:1] in ("", ".") or name[-1] == "/":
        return os.path.abspath(name)  # noqa: PTH100 - links are not resolved, and it is faster
    return name if name[0] == "/" else f"{os.getcwd()}/{name}"  # noqa: PTH109


def on_disk(path: Path) -> Path:
    """Return the path as the disk spells it: names from a Mac may have another Unicode form."""
    if str(path).isascii() or path.exists():
        return path
    found = Path()
    for part in path.parts:
        forms = (found / unicodedata.normalize(form, part) for form in ("NFC", "NFD"))
        match = next((place for place in (found / part, *forms) if place.exists()), None)
        if match is None:
            return path
        found = match
    return found


def backslash_hint(name: str | os.PathLike[str]) -> str:
    r"""Return a hint for a missing file if its path has backslashes although this system separates folders by slashes.

    >>> backslash_hint("cats/1.jpg"), backslash_hint("cats\\1.jpg") if os.sep == "/" else "; its path …"
    ('', '; its path has backslashes, but folders are separated by / here')
    """
    windows = os.sep == "/" and "\\" in str(name)
    return "; its path has backslashes, but folders are separated by / here" if windows else ""


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_json`; raise `UserError` if it is missing or damaged."""
    check_regular(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise UserError(f"{path} cannot be read ({reason}): put the file back from a copy.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (it does not map names to values): put the file back from a copy.")
    return content


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table atomically; None becomes an empty cell, and texts that look like formulas are quoted."""
    with write_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(map(spreadsheet_cell, row) for row in rows)


def new_directory(name: str) -> Path:
    """Return the path of a new directory under ``runs``, named after ``name`` (such as a recipe) and the time."""
    stem = name.removesuffix(".yaml").removesuffix(".yml").strip("./").replace("/", "-")
    return Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def md5_of(path: Path) -> str:
    """Compute the MD5 of a file, which publishers of data sets give to detect damaged downloads."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def has_md5(path: Path, md5: str | None) -> bool:
    """Return whether a file has this MD5; True if none is published."""
    return md5 is None or md5_of(path) == md5
