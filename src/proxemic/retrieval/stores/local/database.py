"""The SQLite database of a gallery's folder, which holds all that must change at once."""

import hashlib
import json
import re
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from proxemic.addresses import GALLERY_FILE
from proxemic.errors import UserError
from proxemic.files import may_not_be_read
from proxemic.retrieval.stores.store import GalleryInfo, IndexKind

SCHEMA_VERSION = 1
APPLICATION, DELETED = 0x50524F58, 0x50524F59  # of a gallery, and of one that is being deleted
PATIENCE = 60.0  # seconds: longer than any commit takes
EXTENSIONS = {"vectors": "npy", "items": "arrow", "index": "faiss"}
_NAME = re.compile(r"(vectors|items|index)-([0-9a-f]{16})-[0-9a-f]{16}\.(npy|arrow|faiss)")

# A segment may get further kinds of files, as of features, without another table.
_SCHEMA = {
    "gallery": "token TEXT NOT NULL, next_id INTEGER NOT NULL, info TEXT NOT NULL, columns TEXT NOT NULL, "
    "roots TEXT NOT NULL",
    "segments": "first INTEGER PRIMARY KEY, last INTEGER NOT NULL, rows INTEGER NOT NULL, ids BLOB, removed BLOB",
    "files": "segment INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, bytes INTEGER NOT NULL, "
    "sha256 TEXT NOT NULL",
    "indexes": "kind TEXT NOT NULL, rows INTEGER NOT NULL, last INTEGER NOT NULL, settings TEXT NOT NULL, "
    "recall REAL, name TEXT NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, seal TEXT NOT NULL",
}
_STATEMENTS = [
    *(f"CREATE TABLE {table}({columns})" for table, columns in _SCHEMA.items()),
    "CREATE TABLE checksum(sha256 TEXT NOT NULL)",
]


class Damaged(UserError):
    """A file of a gallery's folder is not what was written.

    Args:
        path: The file.
        why: What is wrong with it.
        remedy: What to do.
    """

    def __init__(
        self, path: Path, why: object, remedy: str = "put the folder back from a copy, or make the gallery anew"
    ) -> None:
        reason = " ".join(str(why).split())[:200] or type(why).__name__
        if may_not_be_read(path):
            super().__init__(f"{path} cannot be read (permission denied): give permission to read it.")
        else:
            super().__init__(f"{path} is damaged ({reason}): {remedy}.")
        self.path, self.why = path, reason


def _check_counts(what: str, *counts: object) -> None:
    """Refuse anything but whole numbers by which arrays can be counted."""
    if not all(isinstance(count, int) and 0 <= count < 2**62 for count in counts):
        raise ValueError(f"{what} are not whole numbers of 0 or more")


@dataclass(frozen=True)
class File:
    """A file of the folder: its name, its size and its checksum."""

    name: str
    bytes: int
    sha256: str

    def check_kind(self, kind: str, token: str) -> None:
        """Refuse a name that could lead out of the folder, or belongs to another kind of file."""
        match = _NAME.fullmatch(self.name) if isinstance(self.name, str) else None
        if not isinstance(self.sha256, str) or match is None or match.groups() != (kind, token, EXTENSIONS[kind]):
            raise ValueError(f"it names {self.name!r}, which is not one of the {kind} of this gallery")
        _check_counts(f"the bytes of {self.name}", self.bytes)


@dataclass(frozen=True)
class SegmentEntry:
    """Rows with ids from `first` to `last` that were written together and never change.

    `ids` has a bit for each of these ids, whether the segment has it, or is None if it has all; `removed` has a bit for
    each row, or is None if all are there.
    """

    first: int
    last: int
    rows: int
    ids: bytes | None
    removed: bytes | None
    vectors: File
    items: File

    def __post_init__(self) -> None:
        _check_counts("the ids of a segment", self.first, self.last, self.rows)
        length = self.last - self.first + 1
        has = None if self.ids is None else unpack(self.ids, length)
        count = length if has is None else int(has.sum())
        if not 0 < count == self.rows or (has is not None and not (has[0] and has[-1])):
            raise ValueError(f"a segment has {self.rows} rows, but says {count} ids from {self.first} to {self.last}")
        live = self.live()
        if live is not None and (live.all() or not live.any()):
            raise ValueError(f"of a segment of {self.rows} rows, none or all are removed")

    def all_ids(self) -> Int64[np.ndarray, " rows"]:
        """Return the ids of all rows, also of removed ones."""
        if self.ids is None:
            return np.arange(self.first, self.last + 1)
        return self.first + np.flatnonzero(unpack(self.ids, self.last - self.first + 1))

    def live(self) -> Bool[np.ndarray, " rows"] | None:
        """Return which rows were not removed; None if all are there."""
        return None if self.removed is None else ~unpack(self.removed, self.rows)


def unpack(packed: bytes, count: int) -> Bool[np.ndarray, " bits"]:
    """Unpack `count` bits; `ValueError` if there are more or fewer."""
    if not isinstance(packed, bytes) or len(packed) != -(-count // 8):
        raise ValueError(f"it does not have {count} bits")
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(bool)


@dataclass(frozen=True)
class IndexEntry:
    """An index of the rows with ids up to `last`; the seal is the HMAC of all the rest, by the key of who built it."""

    kind: IndexKind
    rows: int
    last: int
    settings: dict[str, int]
    recall: float | None
    file: File
    seal: str

    def __post_init__(self) -> None:
        _check_counts("the numbers of its index", self.rows, self.last, *self.settings.values())
        if self.kind not in ("hnsw", "ivfpq") or not isinstance(self.seal, str):
            raise ValueError(f"its index is {self.kind!r}, but must be hnsw or ivfpq, with a seal")
        if self.recall is not None and not 0 <= self.recall <= 1:
            raise ValueError(f"the recall of its index is {self.recall!r}, but must be in [0, 1]")


@dataclass(frozen=True)
class State:
    """All that the database says. Names of files have the random token of their gallery; columns are all but the id."""

    token: str
    info: GalleryInfo
    next_id: int = 0
    columns: tuple[str, ...] = ("path", "label")
    roots: tuple[str, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()
    index: IndexEntry | None = None
    checksum: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.token, str) and re.fullmatch("[0-9a-f]{16}", self.token)):
            raise ValueError(f"its token is {self.token!r}")
        _check_counts("its ids", self.next_id)
        if not all(isinstance(text, str) for text in (*self.columns, *self.roots)):
            raise ValueError("its columns and roots are not texts")
        if self.columns[:2] != ("path", "label") or len({*self.columns}) < len(self.columns) or "id" in self.columns:
            raise ValueError("its columns are not path, label and others, each once")
        firsts = [*(entry.first for entry in self.segments), self.next_id]
        if any(entry.last >= following for entry, following in zip(self.segments, firsts[1:], strict=True)):
            raise ValueError("the ids of its segments do not ascend")
        for entry in self.segments:
            entry.vectors.check_kind("vectors", self.token)
            entry.items.check_kind("items", self.token)
        if self.index is not None:
            self.index.file.check_kind("index", self.token)

    def new_name(self, kind: str) -> str:
        """Return a name for a new file, which no file ever had."""
        return f"{kind}-{self.token}-{secrets.token_hex(8)}.{EXTENSIONS[kind]}"

    def is_own(self, name: str) -> bool:
        """Return whether a file is called as those of this gallery are."""
        match = _NAME.fullmatch(name)
        return match is not None and match[2] == self.token

    def names(self) -> set[str]:
        """Return the names of all its files."""
        named = {file.name for entry in self.segments for file in (entry.vectors, entry.items)}
        return named if self.index is None else named | {self.index.file.name}


@contextmanager
def connect(folder: Path, action: str, *, timeout: float = PATIENCE, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """Connect to the database of a folder; a transaction that is not committed in the block is rolled back.

    Each use has its own connection: it is not shared by threads or carried into forks, and a database that was deleted
    or replaced is noticed. Errors of SQLite are `UserError`s: it could not be ``action``.
    """
    path = folder / GALLERY_FILE
    if mode == "rw" and not path.is_file():
        raise UserError(
            f"{folder} holds no gallery (there is no {GALLERY_FILE} in it): give the folder of one, or make one with "
            "proxemic gallery create."
        )
    try:
        address = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout)) as db:
            db.execute("PRAGMA trusted_schema=OFF")
            yield db
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # An error without a code is about text that is not UTF-8.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or may_not_be_read(path):
            raise Damaged(path, error) from error
        raise UserError(f"{path} could not be {action}: {error}; free some space or check the folder.") from error


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Begin a transaction in which no writer commits, so that no file that the state names is removed."""
    with connect(folder, "read") as db:
        db.execute("BEGIN")
        yield db


def is_unchanged(db: sqlite3.Connection, state: State) -> bool:
    """Return whether the database still holds this state."""
    return db.execute("SELECT sha256 FROM checksum").fetchall() == [(state.checksum,)]


def pragma(db: sqlite3.Connection, name: str) -> Any:
    """Return a setting of a database."""
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def read_state(db: sqlite3.Connection, folder: Path, application: int = APPLICATION) -> State:
    """Read the database in a transaction; `UserError` if it is not a gallery's, newer than this program or damaged."""
    path = folder / GALLERY_FILE
    if pragma(db, "application_id") != application:
        raise UserError(f"{folder} holds no gallery ({GALLERY_FILE} is not a gallery's): give the folder of one.")
    if (version := pragma(db, "user_version")) > SCHEMA_VERSION:
        raise UserError(
            f"{folder} was written by a newer proxemic (its schema is {version}, but {SCHEMA_VERSION} is the newest "
            "that is known here): update proxemic."
        )
    # With exactly our tables there are no views and triggers of a stranger.
    schema = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
    if version != SCHEMA_VERSION or schema != _STATEMENTS or pragma(db, "journal_mode") != "delete":
        raise Damaged(path, "its tables are not those of a gallery")
    tables = _tables(db)
    checksum = _checksum(tables)
    if db.execute("SELECT sha256 FROM checksum").fetchall() != [(checksum,)]:
        raise Damaged(path, "its checksum is another")
    try:
        return _parse(tables, checksum)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise Damaged(path, error) from error


def _tables(db: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in _SCHEMA}


def _checksum(tables: Mapping[str, Iterable[tuple[Any, ...]]]) -> str:
    digest = hashlib.sha256()
    for table, rows in tables.items():
        digest.update(table.encode())
        for row in rows:
            for value in row:
                content = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % len(content))
                digest.update(content)
    return digest.hexdigest()


def _parse(tables: Mapping[str, Sequence[tuple[Any, ...]]], checksum: str) -> State:
    ((token, next_id, info, columns, roots),) = tables["gallery"]
    files: dict[int, dict[str, File]] = defaultdict(dict)
    for segment, kind, *file in tables["files"]:
        files[segment][kind] = File(*file)
    segments = tuple(SegmentEntry(*row, **files.pop(row[0])) for row in tables["segments"])
    if files or len(tables["indexes"]) > 1:
        raise ValueError("it has files or indexes that belong to nothing")
    index = None
    for kind, rows, last, settings, recall, name, size, sha256, seal in tables["indexes"]:
        index = IndexEntry(kind, rows, last, json.loads(settings), recall, File(name, size, sha256), seal)
    return State(
        token,
        GalleryInfo.from_json(json.loads(info)),
        next_id,
        tuple(json.loads(columns)),
        tuple(json.loads(roots)),
        segments,
        index,
        checksum,
    )


def create_tables(db: sqlite3.Connection, info: GalleryInfo) -> None:
    """Make the tables of an empty gallery."""
    for statement in _STATEMENTS:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    write_state(db, None, State(secrets.token_hex(8), info))


def write_state(db: sqlite3.Connection, before: State | None, now: State) -> None:
    """Replace a state by another; unchanged segments stay where they are."""
    old = set(before.segments) if before else set()
    for entry in old - set(now.segments):
        db.execute("DELETE FROM segments WHERE first = ?", (entry.first,))
        db.execute("DELETE FROM files WHERE segment = ?", (entry.first,))
    for entry in set(now.segments) - old:
        values = entry.first, entry.last, entry.rows, entry.ids, entry.removed
        db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?)", values)
        for kind, file in (("vectors", entry.vectors), ("items", entry.items)):
            db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", (entry.first, kind, *astuple(file)))
    for table in ("gallery", "indexes", "checksum"):
        db.execute(f"DELETE FROM {table}")
    texts = [json.dumps(value) for value in (now.info.to_json(), now.columns, now.roots)]
    db.execute("INSERT INTO gallery VALUES (?, ?, ?, ?, ?)", (now.token, now.next_id, *texts))
    if (index := now.index) is not None:
        values = index.kind, index.rows, index.last, json.dumps(dict(index.settings)), index.recall
        db.execute(
            "INSERT INTO indexes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, *astuple(index.file), index.seal)
        )
    db.execute("INSERT INTO checksum VALUES (?)", (_checksum(_tables(db)),))
