"""What a gallery's folder consists of: one JSON file, which is replaced as a whole."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.retrieval.stores.store import GalleryInfo

MANIFEST = "manifest.json"
_LARGEST = 2**26  # bytes; a gallery has some dozens of files
NAME = re.compile(r"((vectors|index)-\d{6,18}-\d{1,9}|removed-\d{6,18})\.safetensors|items-\d{6,18}-\d{1,9}\.parquet")
"""The names of a gallery's files beside the manifest. No others are read or removed: they are not its own."""
_CHECKSUM = "sha256"


def _check_counts(what: str, *counts: object) -> None:
    """Refuse what is no whole number, or one that arrays cannot be counted by."""
    if not all(isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**62 for count in counts):
        raise ValueError(f"{what} are no whole numbers of 0 or more")


@dataclass(frozen=True)
class File:
    """A file of the folder, and what it must be."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        # Names come from a file: no path may lead out of the folder.
        if not (isinstance(self.name, str) and NAME.fullmatch(self.name)):
            raise ValueError(f"it names a file {self.name!r}, which none of a gallery is called")
        _check_counts(f"the bytes of {self.name}", self.bytes)
        if not (isinstance(self.sha256, str) and len(self.sha256) == 64):
            raise ValueError(f"it does not say the checksum of {self.name}")


@dataclass(frozen=True)
class Shard:
    """Rows that were written at once, with ids from `first` to `last`, some of which may be missing."""

    vectors: File
    items: File
    rows: int
    first: int
    last: int

    def __post_init__(self) -> None:
        _check_counts(f"the rows of {self.vectors.name}", self.rows, self.first, self.last)
        if not 0 < self.rows <= self.last - self.first + 1:
            raise ValueError(f"its shard {self.vectors.name} has {self.rows} rows of {self.first} to {self.last}")


@dataclass(frozen=True)
class IndexEntry:
    """An index of the rows with ids up to `last`, its settings, and its recall where that was measured."""

    kind: str
    file: File
    rows: int
    last: int
    settings: dict[str, int] = field(default_factory=dict)
    recall: float | None = None

    def __post_init__(self) -> None:
        _check_counts("the numbers of its index", self.rows, self.last, *self.settings.values())
        if self.kind not in ("hnsw", "ivfpq"):
            raise ValueError(f"its index is {self.kind!r}, but must be hnsw or ivfpq")
        if self.recall is not None and not 0 <= self.recall <= 1:
            raise ValueError(f"the recall of its index is {self.recall!r}, but must be in [0, 1]")


@dataclass(frozen=True)
class Manifest:
    """A state of a gallery.

    Args:
        info: What is fixed.
        generation: Counts the changes.
        next_id: The id of the next row.
        shards: With ascending ids.
        removed: The ids of rows that are in shards but removed, ascending; None where there are none.
        removed_rows: Their number.
        columns: Names of all columns but the id.
        index: None for exact search.
        roots: Folders and addresses below which pictures may be opened.
    """

    info: GalleryInfo
    generation: int = 0
    next_id: int = 0
    shards: tuple[Shard, ...] = ()
    removed: File | None = None
    removed_rows: int = 0
    columns: tuple[str, ...] = ("path", "label")
    index: IndexEntry | None = None
    roots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_counts("its counts", self.generation, self.next_id, self.removed_rows)
        if not all(isinstance(name, str) for name in self.columns) or len({*self.columns}) < len(self.columns):
            raise ValueError("its columns are no names, each once")
        if not all(isinstance(root, str) for root in self.roots):
            raise ValueError("the roots of its pictures are no texts")
        if self.columns[:2] != ("path", "label") or (self.removed is None) != (self.removed_rows == 0):
            raise ValueError("its columns do not begin with path and label, or removed rows have no file")
        firsts = [*(shard.first for shard in self.shards), self.next_id]
        if any(shard.last >= following for shard, following in zip(self.shards, firsts[1:], strict=True)):
            raise ValueError("the ids of its shards do not ascend")

    @property
    def rows(self) -> int:
        """Rows that are not removed."""
        return sum(shard.rows for shard in self.shards) - self.removed_rows

    def files(self) -> list[File]:
        """All files that it names."""
        of_shards = [file for shard in self.shards for file in (shard.vectors, shard.items)]
        others = (self.removed, None if self.index is None else self.index.file)
        return [*of_shards, *(file for file in others if file is not None)]

    def following(self, **changes: Any) -> Self:
        """The next state."""
        return replace(self, generation=self.generation + 1, **changes)

    def write(self, folder: Path) -> None:
        """Put it in the place of the one before; what it names must be there, whole."""
        write_text(folder / MANIFEST, self._to_text())

    def _to_text(self) -> str:
        content = asdict(self) | {"info": self.info.to_json()}
        checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return json.dumps({**content, _CHECKSUM: checksum}, indent=1) + "\n"

    @staticmethod
    def read_bytes(folder: Path) -> bytes:
        """The file of a folder; `UserError` where there is none."""
        path = folder / MANIFEST
        try:
            file = os.open(path, os.O_RDONLY)  # each search looks here, and should not notice
            try:
                if (size := os.fstat(file).st_size) > _LARGEST:
                    raise Damaged(path, f"it has {size:,} bytes, more than any gallery's")
                return os.read(file, size)
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f"{folder} holds no gallery (there is no {MANIFEST} in it): give the folder of one, or make one with "
                "proxemic gallery create."
            ) from error
        except OSError as error:
            raise Damaged(path, error.strerror or error) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder; `UserError` where there is none, or it is damaged."""
        return cls.parse(folder, cls.read_bytes(folder))

    @classmethod
    def parse(cls, folder: Path, read: bytes) -> Self:
        """What `read_bytes` gave; `UserError` where it is damaged."""
        try:
            text = read.decode()
            manifest = cls._from_json(json.loads(text))
            if manifest._to_text() != text:  # not one byte of it is another
                raise ValueError("its checksum is another")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise Damaged(folder / MANIFEST, error) from error
        return manifest

    @classmethod
    def _from_json(cls, content: Mapping[str, Any]) -> Self:
        def file(of: Mapping[str, Any] | None) -> File | None:
            return None if of is None else File(**of)

        def shard(of: Mapping[str, Any]) -> Shard:
            return Shard(**{**of, "vectors": File(**of["vectors"]), "items": File(**of["items"])})

        given = {name: value for name, value in content.items() if name != _CHECKSUM}
        index = given["index"]
        given["info"] = GalleryInfo.from_json(given["info"])
        given["shards"] = tuple(shard(each) for each in given["shards"])
        given["removed"] = file(given["removed"])
        given["columns"], given["roots"] = tuple(given["columns"]), tuple(given["roots"])
        given["index"] = None if index is None else IndexEntry(**{**index, "file": File(**index["file"])})
        return cls(**given)


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
        said = " ".join(str(why).split())[:200] or type(why).__name__
        super().__init__(f"{path} is damaged ({said}): {remedy}.")
        self.path, self.why = path, said
