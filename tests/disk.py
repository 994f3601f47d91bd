"""No test waits for the disk, which takes longer than most of what it does: only a loss of power would show it.

`tests/test_files.py` tells that what is written is waited for.
"""

import os
import sqlite3


def wait_for_no_disk() -> None:
    """In this process, and in those that are forked from it."""
    os.fsync = _fsync
    try:
        from sqlalchemy import event
        from sqlalchemy.engine import Engine
    except ImportError:
        return
    event.listen(Engine, "connect", _connected)


def _fsync(_: object) -> None:
    pass


def _connected(connection: object, record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")
