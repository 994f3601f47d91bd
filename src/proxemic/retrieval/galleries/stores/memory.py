"""A gallery in memory, such as of a plain folder, which cannot be changed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from proxemic.arrow import as_numbers
from proxemic.errors import UserError
from proxemic.retrieval.galleries.items import OWN, Where, check_where, matching
from proxemic.retrieval.galleries.stores.arrays import Arrays
from proxemic.retrieval.galleries.stores.store import (
    GalleryInfo,
    IndexKind,
    Neighbours,
    QueryRows,
    RowIds,
    State,
    Store,
    VectorRows,
)


class MemoryStore(Store):
    """Rows in memory, which are compared one by one.

    Args:
        address: What messages call the gallery.
        info: The settings of the gallery.
        items: The columns of the rows, as `make_items` returns them.
        vectors: Their vectors.
        roots: The folders and URLs below which images may be opened.
    """

    def __init__(
        self, address: str, info: GalleryInfo, items: pa.Table, vectors: VectorRows, roots: Sequence[str]
    ) -> None:
        super().__init__(address, info)
        ids = np.arange(len(items))
        self._items = items.add_column(0, "id", as_numbers(ids))
        self._arrays, self._roots = Arrays(info.distance, ids, vectors), tuple(roots)

    def __len__(self) -> int:
        return len(self._items)

    def _state(self) -> State:
        further = tuple(name for name in self._items.column_names if name not in OWN)
        return State(len(self), further, self._roots)

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        return {*paths} & {*self._items["path"].to_pylist()}

    def search(self, queries: QueryRows, k: int, where: Where | None = None) -> Neighbours:
        mask = matching(self._items, check_where(where, self.columns)) if where else None
        return self._arrays.search(queries, k, mask)

    def items(self, ids: RowIds) -> pa.Table:
        return self._items.take(as_numbers(ids))

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> RowIds:
        ids = np.flatnonzero(matching(self._items, check_where(where, self.columns)))
        return ids[ids > after][:count]

    def rows(self, ids: Int64[np.ndarray, " asked"]) -> tuple[VectorRows, pa.Table]:
        known = np.intersect1d(ids, self._arrays.ids)
        return self._arrays.vectors_of(known), self.items(known)

    def features(self, ids: RowIds) -> None:
        return None

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[VectorRows, pa.Table]]:
        for first in range(0, len(self), batch_size):
            yield self._arrays.vectors[first : first + batch_size], self._items.slice(first, batch_size)

    @property
    def index(self) -> dict[str, Any]:
        return {"kind": "exact", "rows": len(self)}

    def verify(self) -> list[str]:
        return []

    def _refuse(self) -> NoReturn:
        raise UserError(
            f"{self.address} is a folder of photos, not a gallery: make one with proxemic gallery create, and give "
            "that."
        )

    def add(self, vectors: VectorRows, items: pa.Table, features: object = None) -> RowIds:
        self._refuse()

    def remove(self, where: Where) -> int:
        self._refuse()

    def set_labels(self, labels: Mapping[str, str | None]) -> int:
        self._refuse()

    def add_roots(self, roots: Sequence[str]) -> None:
        self._refuse()

    def keep_calibration(self, content: Mapping[str, Any]) -> None:
        self._refuse()

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        self._refuse()

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        raise NotImplementedError

    @classmethod
    def open(cls, address: str) -> Self:
        raise NotImplementedError

    @classmethod
    def delete(cls, address: str) -> None:
        raise NotImplementedError
