"""The interface of every store of galleries, and what they share."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from jaxtyping import Float32, Int64

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.retrieval.items import Where

with optional_dependency("train"):
    import pyarrow as pa


Distance = Literal["cosine", "euclidean"]
IndexKind = Literal["exact", "hnsw", "ivfpq"]

FORMAT = 1
"""The version of how galleries are written, in every store and in exported files."""

DECISIONS = (
    "CREATE TABLE IF NOT EXISTS {decisions}(number {key}, path TEXT NOT NULL, state TEXT NOT NULL, time TEXT NOT NULL, "
    "session TEXT NOT NULL, reviewer TEXT, action TEXT, previous TEXT, label TEXT)",
    "CREATE UNIQUE INDEX IF NOT EXISTS {active} ON {decisions}(path) WHERE state IN ('looking', 'open', 'applying')",
)
"""The table of what people have decided about rows, see `proxemic.retrieval.curation.decisions`."""


OWN_MODEL = "."
"""The place of a model that lies in the gallery's own folder, which may be moved with it."""


@dataclass(frozen=True)
class GalleryInfo:
    """Settings that are fixed when a gallery is created.

    Args:
        dim: Numbers of each vector, 1 or more.
        distance: How it is searched; with cosine, vectors are kept at unit length.
        embedder: The checksum of the model that makes its vectors; None where it is not known.
        model: Where that model was when the gallery was created; None likewise.
        precision: The precision in which that model computes, such as ``32-true``; None likewise.
        features: Numbers of the features that are kept beside each vector, which the model's head makes of them; None
            keeps none.

    Raises:
        ValueError: If a value is none of these.
    """

    dim: int
    distance: Distance = "cosine"
    embedder: str | None = None
    model: str | None = None
    precision: str | None = None
    features: int | None = None

    def __post_init__(self) -> None:
        for name, value in {"dim": self.dim, "features": 1 if self.features is None else self.features}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of 1 or more")
        if self.distance not in get_args(Distance):
            raise ValueError(f"distance is {self.distance!r}, but must be cosine or euclidean")
        for name in ("embedder", "model", "precision"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be a text")

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any, owner: object) -> Self:
        """Read what `to_json` gave; `UserError` if a newer version wrote it, and `ValueError` for anything else."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            refuse_newer(owner, content.get("format") if isinstance(content, Mapping) else None)
            came = content.get("format") if isinstance(content, Mapping) else type(content).__name__
            raise ValueError(f"its format is {came!r}, but {FORMAT} is what can be read here")
        try:
            return cls(**{name: value for name, value in content.items() if name != "format"})
        except TypeError as error:
            raise ValueError(f"it does not describe a gallery: {error}") from error


def refuse_newer(owner: object, version: Any) -> None:
    """Raise `UserError` if this version of galleries is newer than this program."""
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{owner} was written by a newer version of proxemic: update proxemic (its format is {version}, and "
            f"{FORMAT} is the newest that this version reads)."
        )


class Neighbours(NamedTuple):
    """The nearest rows of a gallery to each query, nearest first; of rows at one distance, the first added.

    Where a gallery has too few rows, distances of infinity and ids of -1 follow.
    """

    distances: Float32[np.ndarray, "queries k"]
    ids: Int64[np.ndarray, "queries k"]


class PartlyWritten(UserError):
    """An addition broke off: the message says why, and `rows`, from the first on, are there."""

    def __init__(self, why: str, rows: int) -> None:
        super().__init__(why)
        self.rows = rows


class Store(ABC):
    """Where a gallery lives: vectors with a table of their metadata.

    Vectors come checked, as `proxemic.retrieval.Gallery` does: finite, and of unit length where the distance is cosine.
    Rows are known by ids from 0, which ascend in the order of adding and are never used twice, and by their paths, of
    which no two are the same.

    Attributes:
        address: Where it is, as a user writes it, without a password.
        indexes: The kinds of index that `build_index` can make.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact",)

    def __init__(self, address: str, info: GalleryInfo) -> None:
        self.address = address
        self.info = info

    @classmethod
    @abstractmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        """Create an empty gallery; raise `UserError` if there is one, or anything else at the address."""

    @classmethod
    @abstractmethod
    def open(cls, address: str) -> Self:
        """Open a gallery; raise `UserError` if there is none, or it cannot be reached or read."""

    @classmethod
    @abstractmethod
    def delete(cls, address: str) -> None:
        """Delete a gallery, and nothing else; raise `UserError` if there is none.

        Killed in between, it leaves the gallery whole, or none: making one there cleans up.
        """

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, `id`, `path` and `label` first."""

    @property
    @abstractmethod
    def roots(self) -> tuple[str, ...]:
        """The folders and addresses below which its pictures may be opened."""

    @abstractmethod
    def add_roots(self, roots: Sequence[str]) -> None:
        """Let pictures below further folders and addresses be opened."""

    @abstractmethod
    def known_paths(self, paths: Sequence[str]) -> set[str]:
        """Return those of the paths that the gallery has."""

    @abstractmethod
    def add(
        self,
        vectors: Float32[np.ndarray, "rows dim"],
        items: pa.Table,
        features: Float32[np.ndarray, "rows features"] | None = None,
    ) -> Int64[np.ndarray, " rows"]:
        """Add rows with new paths and return their ids; raise `PartlyWritten` if only the first could be written.

        Features are given if, and only if, the gallery keeps them.
        """

    @abstractmethod
    def remove(self, where: Where) -> int:
        """Remove the rows that meet all conditions, and give their number."""

    def replace_rows(
        self,
        vectors: Float32[np.ndarray, "rows dim"],
        items: pa.Table,
        features: Float32[np.ndarray, "rows features"] | None = None,
        removed: Sequence[str] = (),
    ) -> Int64[np.ndarray, " rows"]:
        """Add rows and remove those with the same paths, and others, in one step if the store can; give the ids."""
        self.remove({"path": [*items["path"].to_pylist(), *removed]})
        return self.add(vectors, items, features)

    @abstractmethod
    def features(self, ids: Int64[np.ndarray, " rows"]) -> Float32[np.ndarray, "rows features"] | None:
        """Return the features of rows that are there, in the order of the ids; None if the gallery keeps none."""

    @abstractmethod
    def search(self, queries: Float32[np.ndarray, "queries dim"], k: int, where: Where | None = None) -> Neighbours:
        """Find the nearest rows that meet the conditions, with the index if there is one."""

    @abstractmethod
    def items(self, ids: Int64[np.ndarray, " rows"]) -> pa.Table:
        """Return the columns of some rows, in the order of the ids; an id may come several times."""

    @abstractmethod
    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> Int64[np.ndarray, " some"]:
        """Return the ids of the first rows that follow an id and meet all conditions, ascending."""

    @abstractmethod
    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[Float32[np.ndarray, "rows dim"], pa.Table]:
        """Return vectors and items, as `iterate` gives them, of the given ids that exist, ascending."""

    @abstractmethod
    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[Float32[np.ndarray, "rows dim"], pa.Table]]:
        """Yield all rows in the order of their ids, which are the table's column `id`."""

    def count_labels(self) -> Counter[str | None]:
        """Count the rows of each label."""
        return Counter(label for _, table in self.iterate() for label in table["label"].to_pylist())

    @property
    def size(self) -> int | None:
        """Bytes on disk; None where that is not known."""
        return None

    @abstractmethod
    def build_index(self, kind: IndexKind, **settings: int) -> None:
        """Build an index of all rows and replace the present one; `exact` removes it."""

    @property
    @abstractmethod
    def index(self) -> dict[str, Any]:
        """The kind of index, its settings, the rows that it has, and its recall if that was measured."""

    @abstractmethod
    def verify(self) -> list[str]:
        """Read everything, and describe each damage in a sentence; an intact gallery gives none."""

    def decisions(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement of SQL that returns rows on the table ``{decisions}``; each ``?`` is a value."""
        raise UserError(f"{self.address} cannot keep decisions: review a gallery in a folder or in PostgreSQL.")

    def close(self) -> None:  # noqa: B027
        """Give back connections and files."""


def check_settings(
    address: str,
    kind: IndexKind,
    settings: Mapping[str, int],
    allowed: Mapping[str, Mapping[str, tuple[int, int, int]]],
) -> dict[str, int]:
    """Check the settings of an index and fill in defaults.

    `allowed` has the default, lowest and highest value of each setting, by the kind of index.

    >>> check_settings("shop", "hnsw", {"m": 8}, {"hnsw": {"m": (16, 2, 100), "ef_search": (40, 1, 1000)}})
    {'m': 8, 'ef_search': 40}
    """
    if kind not in allowed:
        raise ValueError(f"an index is {kind!r}, but {address} has one of {', '.join(allowed)}.")
    known = allowed[kind]
    for name, value in settings.items():
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no settings"
            raise ValueError(f"{name} is no setting of {kind}, which {takes}.")
        _, low, high = known[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}, but must be a whole number from {low:,} to {high:,}.")
    return {name: settings.get(name, default) for name, (default, _, _) in known.items()}


def exact_distances(
    queries: Float32[np.ndarray, "queries dim"], found: Float32[np.ndarray, "queries k dim"], distance: str
) -> Float32[np.ndarray, "queries k"]:
    """Compute distances without the rounding errors of a matrix product, which matter most for small distances."""
    squares = np.square(found.astype(np.float64) - queries[:, None].astype(np.float64)).sum(2)
    # Of unit vectors, 1 - cos is half of the squared distance.
    return (squares / 2 if distance == "cosine" else np.sqrt(squares)).astype(np.float32)


def merge(found: Sequence[Neighbours], queries: int, k: int) -> Neighbours:
    """Return the nearest of several searches of other rows."""
    nothing = Neighbours(np.full((queries, k), np.inf, np.float32), np.full((queries, k), -1))
    distances, ids = (np.concatenate(parts, axis=1) for parts in zip(nothing, *found, strict=True))
    order = np.lexsort((ids, distances))[:, :k]
    return Neighbours(np.take_along_axis(distances, order, 1), np.take_along_axis(ids, order, 1))
