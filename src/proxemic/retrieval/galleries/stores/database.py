"""The SQLite database of a gallery's folder."""

import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from proxemic.addresses import GALLERY_FILE
from proxemic.arrow import as_numbers, as_texts
from proxemic.caches import cache_folder
from proxemic.data.sources.listing import files_below
from proxemic.errors import UserError
from proxemic.files import may_not_be_read
from proxemic.image_formats import is_picture_name
from proxemic.retrieval.galleries.items import OWN, Where, check_where
from proxemic.retrieval.galleries.stores.store import DECISIONS, IndexKind, State

APPLICATION = 0x50524F58
DECISIONS_NAMES = {"decisions": "decisions", "active": "active", "key": "INTEGER PRIMARY KEY"}
_PATIENCE = 60  # seconds for which a transaction waits for others

# `gallery` has one row. Positions in the file of vectors are called places. Places from before the last compaction have
# the ids in `ids`, and the others the last ids before `next_id`. `cells` are the values of further columns, ordered as
# in `names`.
SCHEMA = (
    "CREATE TABLE gallery(token TEXT NOT NULL, info TEXT NOT NULL, names TEXT NOT NULL, roots TEXT NOT NULL, "
    "faiss TEXT, calibration TEXT, next_id INTEGER NOT NULL, places INTEGER NOT NULL, generation INTEGER NOT NULL, "
    "ids BLOB NOT NULL, version INTEGER NOT NULL)",
    "CREATE TABLE rows(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, label TEXT, cells TEXT NOT NULL)",
    "CREATE INDEX labels ON rows(label)",
    "CREATE TABLE removed(id INTEGER PRIMARY KEY)",
    "CREATE TRIGGER removal AFTER DELETE ON rows BEGIN INSERT INTO removed VALUES (old.id); END",
    "CREATE TABLE blocks(number INTEGER PRIMARY KEY, vectors INTEGER NOT NULL, features INTEGER NOT NULL)",
    *(line.format(**DECISIONS_NAMES) for line in DECISIONS),
)


@dataclass(frozen=True, kw_only=True)
class LocalState(State):
    """The settings of a gallery, and how many rows its files have."""

    token: str
    faiss: Mapping[str, Any] | None
    places: int
    generation: int
    version: int

    @classmethod
    def read(cls, db: sqlite3.Connection) -> Self:
        query = "SELECT next_id, names, roots, calibration, faiss, token, places, generation, version FROM gallery"
        next_id, *texts, token, places, generation, version = db.execute(query).fetchone()
        further, roots, calibration, faiss = (json.loads(text or "null") for text in texts)
        own = {"token": token, "faiss": faiss, "places": places, "generation": generation, "version": version}
        return cls(next_id, tuple(further), tuple(roots), calibration, **own)

    def file(self, folder: Path, kind: str) -> Path:
        """Return the file of ``vectors`` or ``features``."""
        return folder / f"{kind}-{self.token}-{self.generation}.f32"


@dataclass(frozen=True)
class IndexEntry:
    """An index of the rows with ids up to `last`, in a file of the cache."""

    kind: IndexKind
    rows: int
    last: int
    settings: Mapping[str, int]
    recall: float | None
    name: str

    @property
    def path(self) -> Path:
        """The file of the index."""
        return cache_folder("indexes") / self.name

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self)


@contextmanager
def connect(folder: Path, action: str, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """Connect to the database of a gallery; errors of SQLite become `UserError`: it could not be ``action``."""
    path = folder / GALLERY_FILE
    if mode == "rw" and not path.is_file():
        raise UserError(_why_no_gallery(folder))
    try:
        address = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=_PATIENCE)) as db:
            db.execute("PRAGMA cache_spill=OFF")  # so that readers wait for a commit only
            yield db
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            raise UserError(f"{folder} is being written to by another process: try again when it is done.") from error
        if may_not_be_read(path):
            raise UserError(f"{path} cannot be read (permission denied): give permission to read it.") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, error) from error
        raise UserError(f"{path} could not be {action}: {error}; free some space or check the folder.") from error


def pragma(db: sqlite3.Connection, name: str) -> int:
    """Return a setting of a database."""
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def damaged(path: Path, why: object) -> UserError:
    """Return the error to raise if a file is not what was written."""
    reason = " ".join(str(why).split())[:200]
    return UserError(f"{path} is damaged ({reason}): put the folder back from a copy, or create the gallery again.")


def _why_no_gallery(folder: Path) -> str:
    """Say why a folder is not a gallery, and what to do."""
    if not folder.exists():
        around = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = get_close_matches(folder.name, around, n=1)
        hint = f" (there is {folder.with_name(near[0])})" if near else ""
        return f"{folder} does not exist{hint}: give the folder of a gallery, or to search, a folder of photos."
    if folder.is_dir() and any(map(is_picture_name, files_below(folder, {}))):
        return (
            f"{folder} is a folder of photos, not a gallery: make a gallery of it with proxemic gallery create NAME "
            f"{shlex.quote(str(folder))}, and give that."
        )
    return (
        f"{folder} holds no gallery (there is no {GALLERY_FILE} in it): give the folder of one, or make one with "
        "proxemic gallery create."
    )


def numbers_of(found: sqlite3.Cursor) -> Int64[np.ndarray, " rows"]:
    """Return the only column of a query."""
    return np.fromiter((number for (number,) in found), np.int64)


def condition_of(where: Where | None, state: LocalState) -> tuple[str, list[str]]:
    """Build an expression of SQL from conditions, and its values."""
    parts, values = ["TRUE"], []
    for name, allowed in check_where(where, state.columns).items():
        column = name if name in OWN else f"json_extract(cells, '$[{state.further.index(name)}]')"
        texts = [text for text in allowed if text is not None]
        parts.append(f"({column} IN (SELECT value FROM json_each(?)){f' OR {column} IS NULL' * (None in allowed)})")
        values.append(json.dumps(texts))
    return " AND ".join(parts), values


def as_table(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> pa.Table:
    """Convert rows to a table; rows that are older than a column have empty cells."""
    ids, paths, labels, cells = zip(*rows, strict=True) if rows else ((),) * 4
    further = [json.loads(text) for text in cells] if names else []
    texts = [[row[place] if place < len(row) else None for row in further] for place in range(len(names))]
    columns = [as_numbers(np.array(ids, np.int64)), *map(as_texts, (paths, labels, *texts))]
    return pa.table(columns, names=[*OWN, *names])
