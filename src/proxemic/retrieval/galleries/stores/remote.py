"""The base of galleries on servers: a state stored next to the rows, and rows as dictionaries."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from proxemic.errors import UserError
from proxemic.retrieval.galleries.items import OWN, Where
from proxemic.retrieval.galleries.stores.store import (
    FeatureRows,
    IndexKind,
    Neighbours,
    QueryRows,
    RowIds,
    State,
    Store,
    VectorRows,
    exact_distances,
)

BATCH = 2**23  # bytes of vectors per message; a server of Milvus takes messages of 64 MiB
MOST_QUERIES = 1024  # queries per message
FIELDS = (*OWN, "columns", "vector")
Row = dict[str, Any]


@dataclass(frozen=True)
class RemoteState(State):
    """State of a gallery on a server; an `index` of None compares every row."""

    index: Mapping[str, int] | None = None


class RemoteStore(Store):
    """A gallery on a server, whose rows have `id`, `path`, `label`, `columns` (a dictionary) and `vector`."""

    indexes: ClassVar[tuple[IndexKind, ...]] = ("exact", "hnsw")

    @abstractmethod
    def _state(self) -> RemoteState: ...

    @abstractmethod
    def _nearest(self, queries: QueryRows, k: int, where: Where | None) -> Iterable[Sequence[tuple[int, Any]]]:
        """Return for each query the ids and vectors of its nearest rows, in any order."""

    @abstractmethod
    def _rows(self, ids: Sequence[int], fields: Sequence[str]) -> list[Row]:
        """Return these fields of the existing rows with these ids, in any order."""

    @property
    def index(self) -> dict[str, Any]:
        settings = self._state().index
        return {"kind": "exact" if settings is None else "hnsw", "rows": len(self), **(settings or {})}

    def search(self, queries: QueryRows, k: int, where: Where | None = None) -> Neighbours:
        distances, ids = np.full((len(queries), k), np.inf, np.float32), np.full((len(queries), k), -1)
        size = max(1, min(MOST_QUERIES, BATCH // (4 * self.info.dim * k)))
        for first in range(0, len(queries), size):
            for place, found in enumerate(self._nearest(queries[first : first + size], k, where), first):
                if not found:
                    continue
                numbers = np.array([number for number, _ in found])
                vectors = np.array([vector for _, vector in found], np.float32)
                exact = exact_distances(queries[place : place + 1], vectors[None], self.info.distance)[0]
                order = np.lexsort((numbers, exact))
                distances[place, : len(found)], ids[place, : len(found)] = exact[order], numbers[order]
        return Neighbours(distances, ids)

    def features(self, ids: RowIds) -> FeatureRows | None:
        size, parts = self.info.features, [np.empty((0, self.info.features or 1), np.float32)]
        if size is None:
            return None
        step = max(1, BATCH // (4 * size))
        for first in range(0, len(ids), step):
            part = ids[first : first + step].tolist()
            found = {row["id"]: row["features"] for row in self._rows(sorted({*part}), ("id", "features"))}
            if not found.keys() >= {*part}:
                raise UserError(f"{self.address} was changed by another process: begin again.")
            parts.append(np.array([found[number] for number in part], np.float32))
        return np.concatenate(parts)

    def items(self, ids: RowIds) -> pa.Table:
        rows = {row["id"]: row for row in self._rows(np.unique(ids).tolist(), FIELDS[:-1])}
        return as_table([rows[number] for number in ids.tolist() if number in rows], self.columns)

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[VectorRows, pa.Table]:
        rows = self._rows(np.unique(ids).tolist(), FIELDS)
        return self._split(sorted(rows, key=lambda row: row["id"]), self.columns)

    def _split(self, rows: Sequence[Row], columns: Sequence[str]) -> tuple[VectorRows, pa.Table]:
        vectors = np.array([row["vector"] for row in rows], np.float32).reshape(len(rows), self.info.dim)
        return vectors, as_table(rows, columns)


def as_table(rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
    """Convert rows to a table with the columns of a gallery."""
    own = [pa.array([row[name] for row in rows], pa.int64() if name == "id" else pa.string()) for name in OWN]
    further = [pa.array([row["columns"].get(name) for row in rows], pa.string()) for name in columns[len(OWN) :]]
    return pa.table([*own, *further], names=list(columns))
