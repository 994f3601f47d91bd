"""What a gallery's folder consists of: one JSON file, which is replaced as a whole."""

import json
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
_NAME = re.compile(r"(vectors|items|removed|index)-\d{6,}(-\d+)?\.(safetensors|parquet|npy)")


@dataclass(frozen=True)
class File:
    """A file of the folder, and what it must be."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        # Names come from a file: no path may lead out of the folder.
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ValueError(f"it names a file {self.name!r}, which none of a gallery is called")
        if not (isinstance(self.bytes, int) and isinstance(self.sha256, str) and len(self.sha256) == 64):
            raise ValueError(f"it does not say the size and checksum of {self.name}")


@dataclass(frozen=True)
class Shard:
    """Rows that were written at once, with ids from `first` to `last`, some of which may be missing."""

    vectors: File
    items: File
    rows: int
    first: int
    last: int

    def __post_init__(self) -> None:
        numbers = (self.rows, self.first, self.last)
        if not all(isinstance(number, int) for number in numbers) or not 0 < self.rows <= self.last - self.first + 1:
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


@dataclass(frozen=True)
class Manifest:
    """A state of a gallery.

    Args:
        info: What is fixed.
        generation: Counts the changes.
        next_id: The id of the next row.
        shards: With ascending ids.
        removed: The ids of rows that are in shards but removed, ascending int64; None where there are none.
        removed_rows: Their number.
        columns: Names of all columns but the id.
        index: None for exact search.
    """

    info: GalleryInfo
    generation: int = 0
    next_id: int = 0
    shards: tuple[Shard, ...] = ()
    removed: File | None = None
    removed_rows: int = 0
    columns: tuple[str, ...] = ("path", "label")
    index: IndexEntry | None = None

    def __post_init__(self) -> None:
        counts = (self.generation, self.next_id, self.removed_rows)
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError("its counts are no whole numbers of 0 or more")
        ends = [end for shard in self.shards for end in (shard.first, shard.last)]
        if sorted(ends) != ends or (ends and not ends[-1] < self.next_id):
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
        content = asdict(self) | {"info": self.info.to_json()}
        write_text(folder / MANIFEST, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder; `UserError` where there is none, or it is damaged."""
        path = folder / MANIFEST
        try:
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"it has {path.stat().st_size:,} bytes, more than any gallery's")
            return cls._from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise UserError(
                f"{folder} holds no gallery (there is no {MANIFEST} in it): give the folder of one, or make one with "
                "proxemic gallery create."
            ) from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise UserError(f"{path} is damaged ({why}): put the folder back from a copy, or make it anew.") from error

    @classmethod
    def _from_json(cls, content: Mapping[str, Any]) -> Self:
        def file(of: Mapping[str, Any] | None) -> File | None:
            return None if of is None else File(**of)

        def shard(of: Mapping[str, Any]) -> Shard:
            return Shard(**{**of, "vectors": File(**of["vectors"]), "items": File(**of["items"])})

        given = {**content}
        index = given["index"]
        given["info"] = GalleryInfo.from_json(given["info"])
        given["shards"] = tuple(shard(each) for each in given["shards"])
        given["removed"] = file(given["removed"])
        given["columns"] = tuple(map(str, given["columns"]))
        given["index"] = None if index is None else IndexEntry(**{**index, "file": File(**index["file"])})
        return cls(**given)
