"""The interface of all stores of galleries, and the functions that they share."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args

import numpy as np
from jaxtyping import Float32, Int64

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.retrieval.galleries.items import OWN, Where

with optional_dependency("train"):
    import pyarrow as pa


T = TypeVar("T")
Distance = Literal["cosine", "euclidean"]
IndexKind = Literal["exact", "hnsw", "ivfpq"]
# The arrays that stores take and give, as signatures name them.
VectorRows = Float32[np.ndarray, "rows dim"]
FeatureRows = Float32[np.ndarray, "rows features"]
QueryRows = Float32[np.ndarray, "queries dim"]
RowIds = Int64[np.ndarray, " rows"]

FORMAT = 2
"""The version of the file format of galleries, in every store and in exported files."""

DECISIONS = (
    "CREATE TABLE IF NOT EXISTS {decisions}(number {key}, path TEXT NOT NULL, state TEXT NOT NULL, time TEXT NOT NULL, "
    "session TEXT NOT NULL, reviewer TEXT, action TEXT, previous TEXT, label TEXT)",
    "CREATE UNIQUE INDEX IF NOT EXISTS {active} ON {decisions}(path) WHERE state IN ('looking', 'open')",
)
"""The table of people's decisions about rows, see `proxemic.retrieval.curation.decisions`."""


OWN_MODEL = "."
"""The path of a model that lies in the gallery's own folder, so that both can be moved together."""


@dataclass(frozen=True)
class GalleryInfo:
    """Settings that are fixed when a gallery is created.

    Args:
        dim: Number of dimensions of each vector, 1 or more.
        distance: ``cosine``, which stores vectors at unit length, or ``euclidean``.
        embedder: The checksum of the model that makes the vectors; None if it is unknown.
        model: The path or name of that model when the gallery was created; None if it is unknown.
        precision: The precision in which that model computes, such as ``32-true``; None if it is unknown.
        features: Number of features that are stored next to each vector, and from which the model's head computes the
            vector; None stores no features.
        head: How that head was made, as in `proxemic.retrieval.Improvement.kept`; None if it was not.

    Raises:
        ValueError: If a value is out of its range.
    """

    dim: int
    distance: Distance = "cosine"
    embedder: str | None = None
    model: str | None = None
    precision: str | None = None
    features: int | None = None
    head: str | None = None

    def __post_init__(self) -> None:
        for name, value in {"dim": self.dim, "features": 1 if self.features is None else self.features}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of 1 or more")
        if self.distance not in get_args(Distance):
            raise ValueError(f"distance is {self.distance!r}, but must be cosine or euclidean")
        for name in ("embedder", "model", "precision", "head"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be a text")

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any, owner: object) -> Self:
        """Read the result of `to_json`; `UserError` if another version wrote it, `ValueError` for anything else."""
        version = content.get("format") if isinstance(content, Mapping) else None
        if not isinstance(version, int):
            raise ValueError(f"its format is {version!r}, but {FORMAT} is what can be read here")
        check_format(owner, version)
        try:
            return cls(**{name: value for name, value in content.items() if name != "format"})
        except TypeError as error:
            raise ValueError(f"it does not describe a gallery: {error}") from error


def check_format(owner: object, version: int) -> None:
    """Raise `UserError` if a gallery's format is not that of this version."""
    if version > FORMAT:
        raise UserError(
            f"{owner} was written by a newer version of proxemic: update proxemic (its format is {version}, and "
            f"{FORMAT} is the newest that this version reads)."
        )
    if version < FORMAT:
        raise UserError(f"{owner} was written by an older version of proxemic (format {version}): create it again.")


@dataclass(frozen=True)
class State:
    """State of a gallery besides its rows: the next id, the further columns, the roots and the calibration."""

    next_id: int = 0
    further: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    calibration: Mapping[str, Any] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return (*OWN, *self.further)

    def with_further(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the further columns, extended by those of new rows."""
        return tuple(dict.fromkeys((*self.further, *(name for name in names if name not in OWN))))


class Neighbours(NamedTuple):
    """The rows of a gallery nearest to each query, nearest first; rows at the same distance in the order of adding.

    If a gallery has too few rows, distances of infinity and ids of -1 follow.
    """

    distances: Float32[np.ndarray, "queries k"]
    ids: Int64[np.ndarray, "queries k"]


class PartlyWritten(UserError):
    """An addition broke off: the message says why, and the first `rows` rows were written."""

    def __init__(self, why: str, rows: int) -> None:
        super().__init__(why)
        self.rows = rows


class Store(ABC):
    """Storage of a gallery: vectors with a table of their metadata.

    `proxemic.retrieval.Gallery` checks vectors before it stores them: they are finite, and of unit length if the
    distance is cosine. Rows have ids from 0, which ascend in the order of adding and are never reused, and distinct
    paths.

    Attributes:
        address: The address as a user writes it, without a password.
        indexes: The kinds of index that `build_index` can make.
    """

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact",)

    def __init__(self, address: str, info: GalleryInfo) -> None:
        self.address = address
        self.info = info

    @classmethod
    @abstractmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        """Create an empty gallery; raise `UserError` if the address is taken."""

    @classmethod
    @abstractmethod
    def open(cls, address: str) -> Self:
        """Open a gallery; raise `UserError` if there is no gallery, or it cannot be reached or read."""

    @classmethod
    @abstractmethod
    def delete(cls, address: str) -> None:
        """Delete a gallery, and nothing else; raise `UserError` if there is no gallery.

        If the process is killed, the gallery is whole or gone; creating one there removes remaining files.
        """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _state(self) -> State:
        """Read the state."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, `id`, `path` and `label` first."""
        return self._state().columns

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders and URLs below which images may be opened."""
        return self._state().roots

    @abstractmethod
    def add_roots(self, roots: Sequence[str]) -> None:
        """Allow opening images below further folders and URLs."""

    def transaction(self, work: Callable[[], T]) -> T:
        """Read and change in `work` as one transaction, during which no other process writes; Milvus cannot do this."""
        return work()

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The content of `proxemic.retrieval.Calibration` that was learnt on this gallery, or None."""
        return self._state().calibration

    @abstractmethod
    def keep_calibration(self, content: Mapping[str, Any]) -> None:
        """Replace the calibration."""

    @abstractmethod
    def known_paths(self, paths: Sequence[str]) -> set[str]:
        """Return those of the given paths that the gallery has."""

    @abstractmethod
    def add(self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None) -> RowIds:
        """Add rows and return their ids; raise `PartlyWritten` if only the first could be written.

        A row replaces the one with the same path. `features` must be given if the gallery stores features, and only
        then.
        """

    @abstractmethod
    def remove(self, where: Where) -> int:
        """Remove the rows that meet all conditions, and return their number."""

    @abstractmethod
    def set_labels(self, labels: Mapping[str, str | None]) -> int:
        """Change the labels of rows, by path, and return how many changed; unknown paths are ignored."""

    @abstractmethod
    def features(self, ids: RowIds) -> FeatureRows | None:
        """Return the features of existing rows in the order of the ids; None if the gallery stores none."""

    @abstractmethod
    def search(self, queries: QueryRows, k: int, where: Where | None = None) -> Neighbours:
        """Find the nearest rows that meet the conditions, by the index if there is one."""

    @abstractmethod
    def items(self, ids: RowIds) -> pa.Table:
        """Return the columns of rows, in the order of the ids, which may repeat."""

    @abstractmethod
    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> RowIds:
        """Return the next `count` ids after an id whose rows meet all conditions, ascending."""

    @abstractmethod
    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[VectorRows, pa.Table]:
        """Return vectors and items of those given ids that exist, ascending; see `iterate`."""

    @abstractmethod
    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[VectorRows, pa.Table]]:
        """Yield vectors and tables of all rows in batches, ordered by the tables' column `id`."""

    def count_labels(self) -> Counter[str | None]:
        """Count the rows of each label."""
        return Counter(label for _, table in self.iterate() for label in table["label"].to_pylist())

    @property
    def size(self) -> int | None:
        """Bytes on disk; None if unknown."""
        return None

    @abstractmethod
    def build_index(self, kind: IndexKind, **settings: int) -> None:
        """Build an index of all rows, which replaces the present one; `exact` removes the index."""

    @property
    @abstractmethod
    def index(self) -> dict[str, Any]:
        """The kind of index, its settings, the number of its rows, and its recall if that was measured."""

    @abstractmethod
    def verify(self) -> list[str]:
        """Read everything, and describe each damage in a sentence; return an empty list for an intact gallery."""

    def decisions(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run an SQL statement on the table ``{decisions}`` with a value for each ``?``, and return its rows."""
        raise UserError(f"{self.address} cannot keep decisions: review a gallery in a folder or in PostgreSQL.")

    def close(self) -> None:  # noqa: B027
        """Close connections and files."""


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
            raise ValueError(f"{name} is not a setting of {kind}, which {takes}.")
        _, low, high = known[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}, but must be a whole number from {low:,} to {high:,}.")
    return {name: settings.get(name, default) for name, (default, _, _) in known.items()}


def exact_distances(
    queries: QueryRows, found: Float32[np.ndarray, "queries k dim"], distance: str
) -> Float32[np.ndarray, "queries k"]:
    """Compute distances without the rounding errors of a matrix product, which matter for small distances."""
    squares = np.square(found.astype(np.float64) - queries[:, None].astype(np.float64)).sum(2)
    # For unit vectors, 1 - cos is half of the squared distance.
    return (squares / 2 if distance == "cosine" else np.sqrt(squares)).astype(np.float32)


def merge(found: Sequence[Neighbours], queries: int, k: int) -> Neighbours:
    """Merge searches over disjoint rows and return the nearest."""
    nothing = Neighbours(np.full((queries, k), np.inf, np.float32), np.full((queries, k), -1))
    distances, ids = (np.concatenate(parts, axis=1) for parts in zip(nothing, *found, strict=True))
    order = np.lexsort((ids, distances))[:, :k]
    return Neighbours(np.take_along_axis(distances, order, 1), np.take_along_axis(ids, order, 1))
