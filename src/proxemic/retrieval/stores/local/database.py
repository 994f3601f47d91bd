"""The SQLite database of a gallery's folder: everything that must change atomically."""

import hashlib
import json
import re
import secrets
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from proxemic.addresses import GALLERY_FILE
from proxemic.data.sources.listing import files_below
from proxemic.errors import UserError
from proxemic.files import may_not_be_read
from proxemic.image_formats import is_picture_name
from proxemic.retrieval.stores.store import DECISIONS, FORMAT, GalleryInfo, IndexKind, RowIds, refuse_newer

APPLICATION = 0x50524F58
DECISIONS_FILE = "decisions.sqlite"
PATIENCE = 60.0  # seconds: longer than any commit takes
EXTENSIONS = {"vectors": "npy", "features": "npy", "items": "arrow", "index": "faiss"}
FILE_NAME = re.compile(r"(vectors|features|items|index)-([0-9a-f]{16})-[0-9a-f]{16}\.(npy|arrow|faiss)")

# `files` is a JSON object from kinds to files. Values of `gallery` are JSON.
_SCHEMA = [
    "CREATE TABLE gallery(key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE segments(first INTEGER PRIMARY KEY, last INTEGER NOT NULL, rows INTEGER NOT NULL, ids BLOB, "
    "removed BLOB, files TEXT NOT NULL)",
]
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError)


class Damaged(UserError):
    """A file of a gallery's folder differs from what was written."""

    def __init__(
        self, path: Path, why: object, remedy: str = "put the folder back from a copy, or create the gallery again"
    ) -> None:
        reason = " ".join(str(why).split())[:200] or type(why).__name__
        if may_not_be_read(path):
            super().__init__(f"{path} cannot be read (permission denied): give permission to read it.")
        else:
            super().__init__(f"{path} is damaged ({reason}): {remedy}.")
        self.path, self.why = path, reason


@dataclass(frozen=True)
class File:
    """Name, size and checksum of a file in the folder."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SegmentEntry:
    """Rows with ids from `first` to `last` that were written together and never change.

    `ids` is a bitmap of the ids that the segment has, None for all; `removed` a bitmap of removed rows, None for none.
    """

    first: int
    last: int
    rows: int
    ids: bytes | None
    removed: bytes | None
    vectors: File
    items: File
    features: File | None = None

    def files(self) -> dict[str, File]:
        """Return its files by their kinds."""
        kinds = {"vectors": self.vectors, "items": self.items, "features": self.features}
        return {kind: file for kind, file in kinds.items() if file is not None}

    def all_ids(self) -> RowIds:
        """Return the ids of all rows, removed ones included."""
        if self.ids is None:
            return np.arange(self.first, self.last + 1)
        return self.first + np.flatnonzero(_unpack(self.ids, self.last - self.first + 1))

    def live(self) -> Bool[np.ndarray, " rows"]:
        """Return a mask of the rows that are not removed."""
        return np.ones(self.rows, bool) if self.removed is None else ~_unpack(self.removed, self.rows)


def _unpack(packed: bytes, count: int) -> Bool[np.ndarray, " bits"]:
    if len(packed) != -(-count // 8):
        raise ValueError(f"it does not have {count} bits")
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(bool)


@dataclass(frozen=True)
class IndexEntry:
    """An index of the rows with ids up to `last`; the seal is an HMAC of the other fields by the builder's key."""

    kind: IndexKind
    rows: int
    last: int
    settings: dict[str, int]
    recall: float | None
    file: File
    seal: str


@dataclass(frozen=True)
class State:
    """Content of the database; `columns` leaves out the id."""

    token: str
    info: GalleryInfo
    next_id: int = 0
    columns: tuple[str, ...] = ("path", "label")
    roots: tuple[str, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()
    index: IndexEntry | None = None
    checksum: str = field(default="", compare=False)

    def new_name(self, kind: str) -> str:
        """Return a name for a new file, which was never used before."""
        return f"{kind}-{self.token}-{secrets.token_hex(8)}.{EXTENSIONS[kind]}"

    def names(self) -> set[str]:
        """Return the names of all files."""
        named = {file.name for entry in self.segments for file in entry.files().values()}
        return named if self.index is None else named | {self.index.file.name}


@contextmanager
def connect(
    folder: Path, action: str, *, timeout: float = PATIENCE, mode: str = "rw", name: str = GALLERY_FILE
) -> Iterator[sqlite3.Connection]:
    """Connect to a database of a folder; a transaction that is not committed in the block is rolled back.

    A connection per use is not shared by threads or inherited by forks, and notices a deleted or replaced database.
    Errors of SQLite become `UserError`: the database could not be ``action``.
    """
    path = folder / name
    if mode == "rw" and not path.is_file():
        raise UserError(_why_no_gallery(folder))
    try:
        address = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout)) as db:
            db.execute("PRAGMA trusted_schema=OFF")
            yield db
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Errors about text that is not UTF-8 have no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or may_not_be_read(path):
            raise Damaged(path, error) from error
        raise UserError(f"{path} could not be {action}: {error}; free some space or check the folder.") from error


def _why_no_gallery(folder: Path) -> str:
    """Say why a folder is not a gallery, and what to do."""
    if not folder.exists():
        around = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = get_close_matches(folder.name, around, n=1)
        hint = f" (there is {folder.with_name(near[0])})" if near else ""
        return f"{folder} does not exist{hint}: give the folder of a gallery, or to search, a folder of pictures."
    if folder.is_dir() and any(map(is_picture_name, files_below(folder, {}))):
        return (
            f"{folder} is a folder of pictures, not a gallery: make a gallery of it with proxemic gallery create NAME "
            f"{shlex.quote(str(folder))}, and give that."
        )
    return (
        f"{folder} holds no gallery (there is no {GALLERY_FILE} in it): give the folder of one, or make one with "
        "proxemic gallery create."
    )


def pragma(db: sqlite3.Connection, name: str) -> Any:
    """Return a setting of a database."""
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def is_unchanged(db: sqlite3.Connection, state: State) -> bool:
    """Return whether the database still holds this state."""
    return db.execute("SELECT value FROM gallery WHERE key = 'sha256'").fetchall() == [(state.checksum,)]


def read_state(db: sqlite3.Connection, folder: Path) -> State:
    """Read the database in a transaction; `UserError` if it is foreign, newer than this program or damaged."""
    path = folder / GALLERY_FILE
    if pragma(db, "application_id") != APPLICATION:
        raise UserError(f"{folder} holds no gallery ({GALLERY_FILE} is not a gallery's): give the folder of one.")
    refuse_newer(folder, version := pragma(db, "user_version"))
    # Exactly our tables: a stranger's database may have views and triggers.
    schema = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
    if version != FORMAT or schema != _SCHEMA or pragma(db, "journal_mode") != "delete":
        raise Damaged(path, "its tables are not those of a gallery")
    try:
        return _parse(db, folder)
    except _MALFORMED as error:
        raise Damaged(path, error) from error


def _parse(db: sqlite3.Connection, folder: Path) -> State:
    checksum = _checksum(db)
    values = dict(db.execute("SELECT key, value FROM gallery"))
    if values.pop("sha256") != checksum:
        raise ValueError("its checksum is another")
    values = {key: json.loads(value) for key, value in values.items()}
    if (index := values["index"]) is not None:
        index = IndexEntry(**index | {"file": File(*index["file"])})
        measured = index.recall is None or 0 <= index.recall <= 1
        if index.kind not in ("hnsw", "ivfpq") or not measured or not {*map(type, index.settings.values())} <= {int}:
            raise ValueError("its index is not described by its kind, settings and recall")
    segments = [
        SegmentEntry(*row, **{kind: File(*file) for kind, file in json.loads(files).items()})
        for *row, files in db.execute("SELECT * FROM segments ORDER BY first")
    ]
    state = State(
        values["token"],
        GalleryInfo.from_json(values["info"], folder),
        values["next_id"],
        tuple(values["columns"]),
        tuple(values["roots"]),
        tuple(segments),
        index,
        checksum,
    )
    _check(state)
    return state


def _check(state: State) -> None:
    """Refuse names that lead out of the folder, and ids of rows that the files do not have."""
    if state.columns[:2] != ("path", "label") or not all(
        isinstance(text, str) for text in (*state.columns, *state.roots)
    ):
        raise ValueError("its columns are not path, label and others")
    files = [pair for segment in state.segments for pair in segment.files().items()]
    for kind, file in files + ([] if state.index is None else [("index", state.index.file)]):
        match = FILE_NAME.fullmatch(file.name)
        if match is None or match.groups() != (kind, state.token, EXTENSIONS[kind]):
            raise ValueError(f"it names {file.name!r}, which is not one of the {kind} of this gallery")
    following = -1
    for entry in state.segments:
        rows = entry.last - entry.first + 1 if entry.ids is None else len(entry.all_ids())
        if not (following < entry.first <= entry.last < state.next_id and rows == entry.rows):
            raise ValueError("the ids of its segments do not ascend, or are not those of its rows")
        if (entry.features is None) != (state.info.features is None):
            raise ValueError("its features are not those that it says it keeps")
        if entry.removed is not None:
            entry.live()
        following = entry.last


def _checksum(db: sqlite3.Connection) -> str:
    gallery = db.execute("SELECT key, value FROM gallery WHERE key <> 'sha256' ORDER BY key").fetchall()
    segments = db.execute("SELECT * FROM segments ORDER BY first").fetchall()
    return hashlib.sha256(repr((gallery, segments)).encode("utf-8", "surrogatepass")).hexdigest()


def create_tables(db: sqlite3.Connection, info: GalleryInfo) -> None:
    """Create the tables of an empty gallery."""
    for statement in _SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={FORMAT}")
    db.execute("INSERT INTO gallery VALUES ('info', ?)", (json.dumps(info.to_json()),))
    write_state(db, (), State(secrets.token_hex(8), info))


def write_state(db: sqlite3.Connection, before: Sequence[SegmentEntry], now: State) -> str:
    """Replace a state by another with the same info, and return its checksum; unchanged segments stay."""
    for entry in {*before} - {*now.segments}:
        db.execute("DELETE FROM segments WHERE first = ?", (entry.first,))
    for entry in {*now.segments} - {*before}:
        values = entry.first, entry.last, entry.rows, entry.ids, entry.removed
        files = {kind: astuple(file) for kind, file in entry.files().items()}
        db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)", (*values, json.dumps(files)))
    gallery = {name: getattr(now, name) for name in ("token", "next_id", "columns", "roots")}
    index = None if now.index is None else asdict(now.index) | {"file": astuple(now.index.file)}
    for key, value in (gallery | {"index": index}).items():
        db.execute("REPLACE INTO gallery VALUES (?, ?)", (key, json.dumps(value)))
    checksum = _checksum(db)
    db.execute("REPLACE INTO gallery VALUES ('sha256', ?)", (checksum,))
    return checksum


def run_on_decisions(folder: Path, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement on the table of decisions, which has its own database, so that writers do not lock it."""
    names = {"decisions": "decisions", "active": "active", "key": "INTEGER PRIMARY KEY"}
    schema = [line.format(**names) for line in DECISIONS]
    with connect(folder, "written", mode="rwc", name=DECISIONS_FILE) as db:
        db.execute("BEGIN IMMEDIATE")
        for line in schema:
            db.execute(line)
        known = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
        if known != [line.replace(" IF NOT EXISTS", "") for line in schema]:
            why = "its tables are not those of decisions"
            raise Damaged(folder / DECISIONS_FILE, why, "move it away; the gallery itself needs none")
        found = db.execute(statement.format(**names), values).fetchall()
        db.execute("COMMIT")
        return found
