"""Keep the embeddings of a model in the user's cache, so that no command embeds an image again.

A SQLite file for each model has blocks of vectors that were computed together, and for each image its block and its
position in the block. An image is found again by digests of the size and both times of its file, its box, and either
its absolute path or the number (inode) of its file, which stays if a folder is moved; and by a digest of its content.
The time of the last change cannot be set back, so a changed file always has other digests. Its old vector stays until
its block is removed. All files may be deleted at any time: the vectors are computed again.
"""

import hashlib
import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Float32, Int64
from tqdm import tqdm

from proxemic.caches import cache_folder
from proxemic.data.pixels import FilePixels
from proxemic.data.stamps import stamps_of
from proxemic.errors import UserError, UserNote
from proxemic.files import absolute_name

Found = Int64[np.ndarray, "images 2"]
"""The block of each image, and its position in the block; -1 if the image is not known."""

_FORMAT = 0x50524F01
_SCHEMA = (
    "CREATE TABLE blocks(number INTEGER PRIMARY KEY, used INTEGER NOT NULL, rows INTEGER NOT NULL, "
    "engine TEXT NOT NULL, vectors BLOB NOT NULL)",
    "CREATE TABLE rows(key BLOB PRIMARY KEY, block INTEGER NOT NULL, place INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version={_FORMAT}",
)
_PATIENCE = 60  # seconds for which a transaction waits for others
_DAY = 86_400  # seconds: what was used within a day stays, whatever its size
_FEW = 8  # looking up more images for each block than this takes longer than reading all rows
_SECONDS = 1.0  # at most this work, and a batch, is lost by a kill
_MISSES = 256  # images in a row with unknown contents after which contents are not looked up any more


@dataclass(frozen=True)
class PictureKeys:
    """The digests by which images are found again; None for images at URLs and missing images."""

    paths: Sequence[Path | str]
    boxes: Sequence[object]
    stamps: Sequence[tuple[str, int] | None]

    @classmethod
    def of(cls, pixels: FilePixels) -> Self:
        """Look at the files of images."""
        return cls(pixels.paths, pixels.boxes, stamps_of(pixels))

    def __len__(self) -> int:
        return len(self.paths)

    def of_file(self, place: int) -> tuple[bytes, ...]:
        """Return the digests of an image that need no reading."""
        if (stamp := self.stamps[place]) is None:
            return ()
        return _digest(stamp[0], absolute_name(str(self.paths[place]))), _digest(stamp[0], str(stamp[1]))

    def of_content(self, place: int) -> tuple[bytes, ...]:
        """Read the file of an image, and return the digest of its content, unless it was changed meanwhile."""
        path, box = self.paths[place], self.boxes[place]
        if self.stamps[place] is None or isinstance(path, str):
            return ()
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return ()
        is_same = stamps_of(FilePixels([path], [box])) == [self.stamps[place]]  # pyright: ignore[reportArgumentType]
        return (_digest(content, str(box)),) if is_same else ()


def _digest(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode(errors="surrogateescape"), digest_size=16).digest()


class KeptVectors:
    """The vectors of one model; if their file cannot be used, nothing is known or kept, and a note says so once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reads = self._writes = True  # a full disk can still be read

    def find(self, keys: PictureKeys) -> Found:
        """Find the vectors of known images, and note that they are used."""
        try:
            return self._find(keys)
        except KeyError:
            return np.full((len(keys), 2), -1)

    def _find(self, keys: PictureKeys) -> Found:
        found = np.full((len(keys), 2), -1)
        with self._transaction(write=False) as db:
            if db is None:
                return found
            blocks = dict(db.execute("SELECT number, used FROM blocks"))
            look_up = _look_up(db, blocks, whole=len(keys) > _FEW * len(blocks))
            places = range(len(keys))
            unknown = [place for place in places if not _fill(found, place, map(look_up, keys.of_file(place)))]
            copied, misses = list[int](), 0
            reading = tqdm(unknown if blocks else (), "looking up", unit="image", leave=False, disable=None, delay=2)
            for place in reading:
                is_known = _fill(found, place, map(look_up, keys.of_content(place)))
                copied += [place] * is_known
                misses = 0 if is_known else misses + 1
                if misses == _MISSES:
                    break
            old = {number for number, used in blocks.items() if used < _now() - _DAY}
        again = old & {*found[:, 0].tolist()}
        if again or copied:
            with self._transaction(write=True) as db:
                if db is not None:
                    db.executemany(
                        "UPDATE blocks SET used = ? WHERE number = ?", [(_now(), number) for number in again]
                    )
                    rows = ((key, *found[place].tolist()) for place in copied for key in keys.of_file(place))
                    db.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", rows)
        return found

    def read(self, found: Found) -> Float32[np.ndarray, "images dim"]:
        """Return the vectors of known images; `KeyError` if they were removed meanwhile."""
        vectors = np.empty((0, 0), np.float32)
        with self._transaction(write=False) as db:
            for number in np.unique(found[:, 0]).tolist():
                get = "SELECT rows, vectors FROM blocks WHERE number = ?"
                block = None if db is None else db.execute(get, (number,)).fetchone()
                if block is None:
                    raise KeyError(number)
                own, rows = np.flatnonzero(found[:, 0] == number), np.frombuffer(block[1], "<f4").reshape(block[0], -1)
                vectors = vectors if vectors.size else np.empty((len(found), rows.shape[1]), np.float32)
                vectors[own] = rows[found[own, 1]]
        return vectors

    def add(
        self, keys: PictureKeys, places: Sequence[int], vectors: Float32[np.ndarray, "rows dim"], engine: str
    ) -> None:
        """Keep the vectors of the images at the given indices, in one transaction."""
        known = [(*keys.of_file(place), *keys.of_content(place)) for place in places]
        chosen = [row for row, own in enumerate(known) if len(own) == 3]  # the others have changed, or are not files
        if not chosen:
            return
        content = np.ascontiguousarray(vectors[chosen], "<f4").tobytes()
        with self._transaction(write=True) as db:
            if db is not None:
                block = (_now(), len(chosen), engine, content)
                make = "INSERT INTO blocks(used, rows, engine, vectors) VALUES (?, ?, ?, ?)"
                number = db.execute(make, block).lastrowid
                rows = ((key, number, place) for place, row in enumerate(chosen) for key in known[row])
                db.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", rows)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sqlite3.Connection | None]:
        """Run the block in a transaction; yield None if the file is not there, or cannot be used."""
        db = self._begin(write=write)
        try:
            yield db
            if db is not None:
                db.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(error, write=write)
            if not write:
                raise KeyError(str(error)) from error
        finally:
            if db is not None:
                db.close()

    def _begin(self, *, write: bool) -> sqlite3.Connection | None:
        if not (self._writes if write else self._reads and self.path.is_file()):
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            db = _open(self.path)
            db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        except (sqlite3.Error, OSError) as error:
            self._give_up(error, write=write)
            return None
        return db

    def _give_up(self, error: Exception, *, write: bool) -> None:
        is_first, self._writes, self._reads = self._writes, False, self._reads and write
        if is_first:
            note = f"Vectors are not kept in {self.path} ({error}), and will be computed again by the next command."
            warnings.warn(note, UserNote, stacklevel=2)


def _look_up(
    db: sqlite3.Connection, blocks: Container[int], *, whole: bool
) -> Callable[[bytes], tuple[int, int] | None]:
    """Return a function from a key to a block and a position in it; None for an unknown key or a removed block."""
    if whole:
        rows = db.execute("SELECT key, block, place FROM rows")
        return {key: (block, place) for key, block, place in rows if block in blocks}.get

    def look_up(key: bytes) -> tuple[int, int] | None:
        found = db.execute("SELECT block, place FROM rows WHERE key = ?", (key,)).fetchone()
        return found if found is not None and found[0] in blocks else None

    return look_up


def _fill(found: Found, place: int, known: Iterator[tuple[int, int] | None]) -> bool:
    """Note where the vector of an image is, by the first known key of the image; return whether a key is known."""
    where = next(filter(None, known), None)
    if where is not None:
        found[place] = where
    return where is not None


class Keeping:
    """The kept vectors of some images; as a context manager, keep new ones about once a second, and at the end.

    Args:
        kept: The vectors of a model.
        keys: The digests of the images.
    """

    def __init__(self, kept: KeptVectors, keys: PictureKeys) -> None:
        self._kept, self._keys, self._engine = kept, keys, "torch"
        self._found = kept.find(keys)
        self._places, self._vectors = list[int](), list[np.ndarray]()
        self._began = time.monotonic()

    @property
    def missing(self) -> Int64[np.ndarray, " missing"]:
        """The indices of the images that are not known."""
        return np.flatnonzero(self._found[:, 0] < 0)

    def known(self, between: range) -> Int64[np.ndarray, " known"]:
        """Return the indices of the known images in a range."""
        return between.start + np.flatnonzero(self._found[between.start : between.stop, 0] >= 0)

    def read(self, places: Int64[np.ndarray, " known"]) -> Float32[np.ndarray, "known dim"]:
        """Return the vectors of known images; `KeyError` if they were removed meanwhile."""
        return self._kept.read(self._found[places])

    def add(self, places: Sequence[int], vectors: Float32[np.ndarray, "rows dim"], engine: str | None = None) -> None:
        """Keep the finite vectors of the images at the given indices, and the engine that computed them."""
        if (engine or "torch") != self._engine:
            self._write()
            self._engine = engine or "torch"
        good = np.flatnonzero(np.isfinite(vectors).all(1))
        self._places += [places[row] for row in good.tolist()]
        self._vectors.append(vectors[good])
        if time.monotonic() - self._began > _SECONDS:
            self._write()

    def completed(self, new: Float32[np.ndarray, "missing dim"]) -> Float32[np.ndarray, "images dim"]:
        """Return the vectors of all images, given those of the missing ones."""
        known = self.known(range(len(self._keys)))
        if not len(known):
            return new
        try:
            vectors = self.read(known)
        except KeyError as error:
            raise UserError("The cache was cleared meanwhile: run the same command again.") from error
        whole = np.empty((len(self._keys), vectors.shape[1]), np.float32)
        whole[known] = vectors
        if len(new):
            whole[self.missing] = new
        return whole

    def _write(self) -> None:
        if self._places:
            self._kept.add(self._keys, self._places, np.concatenate(self._vectors), self._engine)
        self._places, self._vectors, self._began = [], [], time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()


def kept_vectors(checksum: str, preprocessing: object, precision: str) -> KeptVectors | None:
    """Return the vectors of a model with a preprocessing; None if `PROXEMIC_CACHE_GB` is 0."""
    if _limit() <= 0:
        return None
    described = hashlib.sha256(f"{preprocessing!r} {precision}".encode()).hexdigest()
    return _opened(vectors_folder() / f"{checksum[:24]}-{described[:8]}.sqlite")


@cache
def _opened(path: Path) -> KeptVectors:
    for former in ("galleries", "features"):  # of earlier versions, in other formats
        shutil.rmtree(cache_folder(former), ignore_errors=True)
    make_room(_limit())
    return KeptVectors(path)


def _limit() -> float:
    """Return how many bytes all vectors may take."""
    given = os.environ.get("PROXEMIC_CACHE_GB", "10")
    try:
        return float(given) * 1e9
    except ValueError:
        raise UserError(f"PROXEMIC_CACHE_GB is {given}, but must be a number of gigabytes.") from None


def vectors_folder() -> Path:
    """Return the folder of the files of all models."""
    return cache_folder("vectors")


def networks_folder() -> Path:
    """Return the folder of the networks that were converted for ONNX Runtime."""
    return cache_folder("networks")


def _open(path: Path) -> sqlite3.Connection:
    """Open a file of vectors; a damaged one, or one of another format, is replaced."""
    for _ in range(2):
        db = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE)
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
                return db
            db.execute("BEGIN IMMEDIATE")
            if not db.execute("PRAGMA schema_version").fetchone()[0]:
                for statement in _SCHEMA:
                    db.execute(statement)
            db.execute("COMMIT")
            if db.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
                return db
        except sqlite3.OperationalError:
            db.close()
            raise
        except sqlite3.DatabaseError:  # it is not a database
            pass
        db.close()
        path.unlink(missing_ok=True)
    raise OSError(f"{path} cannot be created")


def make_room(most: float) -> None:
    """Remove the least recently used vectors until all together take at most this many bytes."""
    files = sorted(vectors_folder().glob("*.sqlite"), key=lambda file: file.stat().st_mtime)
    excess = sum(file.stat().st_size for file in files) - most
    for file in files if excess > 0 else ():
        with suppress(sqlite3.Error, OSError), closing(_open(file)) as db:
            db.execute("BEGIN IMMEDIATE")
            query = "SELECT number, length(vectors) FROM blocks WHERE used < ? ORDER BY used, number"
            for number, length in db.execute(query, (_now() - _DAY,)).fetchall():
                if excess > 0:
                    db.execute("DELETE FROM blocks WHERE number = ?", (number,))
                    excess -= length
            db.execute("DELETE FROM rows WHERE block NOT IN (SELECT number FROM blocks)")
            db.execute("COMMIT")
            db.execute("VACUUM")


def kept_embeddings() -> dict[str, tuple[int, int]]:
    """Return the number of embeddings of each model, and their bytes, by the name of the model's file."""
    found = dict[str, tuple[int, int]]()
    for path in sorted(vectors_folder().glob("*.sqlite")):
        with suppress(sqlite3.Error, OSError), closing(_open(path)) as db:
            (rows,) = db.execute("SELECT coalesce(sum(rows), 0) FROM blocks").fetchone()
            found[path.stem] = (rows, path.stat().st_size)
    return found


def converted_networks() -> tuple[int, int]:
    """Return the number of converted networks, and their bytes."""
    files = [*networks_folder().glob("*.onnx")]
    return len(files), sum(path.stat().st_size for path in files)


def clear_kept() -> int:
    """Remove all embeddings, the heads learnt from them, and converted networks; return how many bytes were freed."""
    folders = [vectors_folder(), cache_folder("heads"), networks_folder()]
    size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return size


def _now() -> int:
    return int(time.time())
