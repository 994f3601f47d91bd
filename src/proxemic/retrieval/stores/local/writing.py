"""Who may write to a gallery's folder: one process at a time, and the others are told which."""

import getpass
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import remove_stale_temporaries, write_errors

with optional_dependency("train"):
    from filelock import FileLock, Timeout

LOCK, WRITER = ".lock", ".writer.json"


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder while the block runs; a killed one lets go of it.

    Raises:
        UserError: If another process writes there; it says which, and since when.
    """
    try:
        with write_errors(folder / LOCK), FileLock(folder / LOCK, timeout=0, is_singleton=False):
            writer = {"process": os.getpid(), "host": socket.gethostname(), "user": getpass.getuser()}
            (folder / WRITER).write_text(json.dumps(writer | {"since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}))
            remove_stale_temporaries(folder)
            yield
    except Timeout:
        raise UserError(
            f"{folder} is being written to by {_writer(folder)}: wait for it; searching goes on meanwhile. If no such "
            f"process runs, delete {folder / LOCK}."
        ) from None


def _writer(folder: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        writer = json.loads((folder / WRITER).read_text())
        return "process {process} of {user} on {host}, since {since}".format(**writer)
    return "another process"
