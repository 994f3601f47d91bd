"""Changing a gallery's folder: one writer at a time, and nothing that is seen before it is whole."""

import getpass
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from proxemic.addresses import GALLERY_FILE
from proxemic.errors import UserError
from proxemic.files import write_errors
from proxemic.retrieval.items import Where, check_where
from proxemic.retrieval.stores.local.database import (
    APPLICATION,
    FILE_NAME,
    PATIENCE,
    connect,
    create_tables,
    pragma,
    read_state,
    write_state,
)
from proxemic.retrieval.stores.local.segments import Segment, write_segment
from proxemic.retrieval.stores.local.snapshot import BLOCK, Snapshot
from proxemic.retrieval.stores.store import GalleryInfo

_WRITER = ".writer.json"


class Change:
    """A new state in the making; `state` is what is to be.

    Args:
        snapshot: The state before.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.state = snapshot.state
        self._segments = [*snapshot.segments]

    def add(self, vectors: Float32[np.ndarray, "rows dim"], items: pa.Table) -> Int64[np.ndarray, " rows"]:
        """Add rows and return their ids."""
        ids = self.state.next_id + np.arange(len(vectors))
        if not len(ids):
            return ids
        # Small segments at the end are written again together with the new rows: there are never more than some dozens
        # of them, and the large ones stay as they are.
        parts, all_ids, tables = [vectors], [ids], [items]
        while self._segments and len(self._segments[-1].ids) < min(2 * sum(map(len, all_ids)) + 1, BLOCK):
            last = self._segments.pop()
            last.check()
            parts.insert(0, last.vectors[last.live])
            all_ids.insert(0, last.ids[last.live])
            tables.insert(0, last.read(None, np.flatnonzero(last.live)))
        self._write(np.concatenate(all_ids), np.concatenate(parts), pa.concat_tables(tables, promote_options="default"))
        columns = tuple(dict.fromkeys((*self.state.columns, *items.column_names)))
        self._update(next_id=int(ids[-1]) + 1, columns=columns)
        return ids

    def remove(self, where: Where) -> int:
        """Remove the rows that meet all conditions and return their number."""
        conditions, count = check_where(where, ("id", *self.state.columns)), 0
        before, self._segments = self._segments, []
        for segment in before:
            going = segment.meeting(conditions)
            live = segment.live & ~going
            count += int(going.sum())
            if not going.any():
                self._segments.append(segment)
            elif live.mean() > 0.5:
                self._segments.append(segment.updated(replace(segment.entry, removed=np.packbits(~live).tobytes())))
            elif live.any():  # most rows are removed: the others are written again
                segment.check()
                self._write(segment.ids[live], segment.vectors[live], segment.read(None, np.flatnonzero(live)))
        self._update()
        return count

    def _write(self, ids: Int64[np.ndarray, " rows"], vectors: np.ndarray, items: pa.Table) -> None:
        folder, state = self.snapshot.folder, self.state
        self._segments.append(Segment(folder, write_segment(folder, state, ids, vectors, items), state.info.dim))

    def _update(self, **changes: Any) -> None:
        self.state = replace(self.state, segments=tuple(segment.entry for segment in self._segments), **changes)


@contextmanager
def changing(folder: Path, before: Snapshot | None = None) -> Iterator[Change]:
    """Make a change, which is kept at the end of the block; a process that is killed leaves the state before.

    Raises:
        UserError: If another process writes there; it says which, and since when.
    """
    with _only_writer(folder) as db:
        state = read_state(db, folder)
        if before is not None and state.token != before.state.token:
            raise another_gallery(folder)
        _sign(folder)
        _remove_files(folder, state.token, state.names())
        change = Change(Snapshot(folder, state, before))
        yield change
        if change.state != state:
            write_state(db, state.segments, change.state)
            db.execute("COMMIT")


def another_gallery(folder: Path) -> UserError:
    """Return what is raised if the folder holds another gallery than before."""
    return UserError(f"{folder} is another gallery than the one that was opened: open it anew.")


@contextmanager
def _only_writer(folder: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """Begin a transaction as the only writer; without a COMMIT in the block nothing is changed."""
    with connect(folder, "written", timeout=0.1, mode=mode) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            who = "another process"
            with suppress(OSError, ValueError, KeyError, TypeError):
                writer = json.loads((folder / _WRITER).read_text())
                who = "process {process} of {user} on {host}, since {since}".format(**writer)
            raise UserError(
                f"{folder} is being written to by {who}: wait for it; searching goes on meanwhile."
            ) from None
        db.execute(f"PRAGMA busy_timeout={int(1000 * PATIENCE)}")  # a commit waits for readers
        yield db


def _sign(folder: Path) -> None:
    """Write who writes, for those who come in between."""
    writer = {"process": os.getpid(), "host": socket.gethostname(), "user": getpass.getuser()}
    with write_errors(folder / _WRITER):
        (folder / _WRITER).write_text(json.dumps(writer | {"since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}))


def _remove_files(folder: Path, token: str | None, named: set[str]) -> None:
    """Remove the files of a gallery that its state does not name: of killed writers, and of states before.

    Readers opened the latter in transactions of their own, in which the state could not change.
    """
    with write_errors(folder):
        for path in folder.iterdir():
            match = FILE_NAME.fullmatch(path.name)
            if match and match[2] == (token or match[2]) and path.name not in named:
                path.unlink(missing_ok=True)


def create_gallery(folder: Path, info: GalleryInfo) -> None:
    """Make an empty gallery; `UserError` if the folder has anything but what a killed deletion or creation left."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a new or an empty folder for a gallery.")
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    own = (GALLERY_FILE, f"{GALLERY_FILE}-journal", _WRITER)
    if any(path.name not in own and not FILE_NAME.fullmatch(path.name) for path in folder.iterdir()):
        _refuse_full(folder)
    with _only_writer(folder, "rwc") as db:
        if pragma(db, "schema_version"):
            _refuse_full(folder)
        _sign(folder)
        _remove_files(folder, None, set())
        create_tables(db, info)
        db.execute("COMMIT")


def _refuse_full(folder: Path) -> None:
    with suppress(UserError), connect(folder, "read") as db:
        if pragma(db, "application_id") == APPLICATION:
            raise UserError(f"{folder} holds a gallery: add to it, choose another name, or delete it.")
    raise UserError(f"{folder} is not empty: choose a new or an empty folder for a gallery.")


def delete_gallery(folder: Path) -> None:
    """Delete the files of a gallery, and the folder if it then is empty; `UserError` if it holds no gallery."""
    with _only_writer(folder) as db, write_errors(folder):
        token = read_state(db, folder).token
        _sign(folder)
        # Without its database there is no gallery: a process that is killed from here on leaves what the next one that
        # makes a gallery here removes.
        (folder / GALLERY_FILE).unlink()
        _remove_files(folder, token, set())
        (folder / _WRITER).unlink(missing_ok=True)
    with suppress(OSError):  # it has other files
        folder.rmdir()
