"""Who may write to a gallery's folder: one process at a time, and the others are told which."""

import getpass
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import remove_stale_temporaries, write_errors
from proxemic.retrieval.stores.local.manifest import MANIFEST, NAME

with optional_dependency("train"):
    from filelock import FileLock, Timeout

LOCK, WRITER = ".lock", ".writer.json"
_OWN = re.compile(rf"{re.escape(MANIFEST)}|{NAME.pattern}")


def check_is_empty(folder: Path) -> None:
    """Raise `UserError` where there is anything but what a killed process left that made a gallery."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a new or an empty folder for a gallery.")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if MANIFEST in names:
        raise UserError(f"{folder} holds a gallery: add to it, choose another name, or delete it.")
    if any(name not in (LOCK, WRITER) and not name.startswith(f".{MANIFEST}.") for name in names):
        raise UserError(f"{folder} is not empty: choose a new or an empty folder for a gallery.")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder while the block runs; a killed one lets go of it.

    Raises:
        UserError: If another process writes there; it says which, and since when.
    """
    lock = FileLock(folder / LOCK, timeout=0, is_singleton=False)
    with write_errors(folder / LOCK):
        try:
            lock.acquire()
        except Timeout:  # which is an `OSError`
            raise UserError(
                f"{folder} is being written to by {_writer(folder)}: wait for it; searching goes on meanwhile. If no "
                f"such process runs, delete {folder / LOCK}."
            ) from None
    try:
        writer = {"process": os.getpid(), "host": socket.gethostname(), "user": getpass.getuser()}
        with write_errors(folder / WRITER):
            (folder / WRITER).write_text(json.dumps(writer | {"since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}))
        remove_stale_temporaries(folder, _OWN)
        yield
    finally:
        lock.release()


def _writer(folder: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        writer = json.loads((folder / WRITER).read_text())
        return "process {process} of {user} on {host}, since {since}".format(**writer)
    return "another process"
