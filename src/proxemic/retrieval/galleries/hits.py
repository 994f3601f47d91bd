"""Results of searches: hits, and the images by which queries are recognised."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxemic.retrieval.galleries.items import further_columns
from proxemic.retrieval.galleries.stores import Neighbours, Store


@dataclass(frozen=True)
class Hit:
    """An image that a search found.

    Args:
        id: Number of its row in the gallery.
        path: Its path, or another name under which it was added.
        label: Its label, or None.
        distance: Distance to the query: 1 - cos, in [0, 2], or Euclidean.
        columns: Values of the gallery's further columns.
    """

    id: int
    path: str
    label: str | None
    distance: float
    columns: Mapping[str, str | None]


@dataclass(frozen=True)
class Recognition:
    """The label of a query, or *unknown*.

    Args:
        label: The label of the nearest labelled image within the threshold; None means *unknown*.
        distance: Distance to `nearest`; infinite if the gallery is empty.
        nearest: The image that gave the label, or else the nearest image; None if the gallery is empty.
    """

    label: str | None
    distance: float
    nearest: Hit | None


def hits_of(store: Store, neighbours: Neighbours) -> list[list[Hit]]:
    """Return the metadata of the neighbours of each query."""
    table = store.items(np.unique(neighbours.ids[neighbours.ids >= 0]))
    further = further_columns(table.column_names)
    rows: dict[int, dict[str, Any]] = {row["id"]: row for row in table.to_pylist()}
    return [
        [
            Hit(row["id"], row["path"], row["label"], distance, {name: row[name] for name in further})
            for distance, number in zip(distances, numbers, strict=True)
            # Another process may have removed a row in the meantime.
            if (row := rows.get(number)) is not None
        ]
        for distances, numbers in zip(neighbours.distances.tolist(), neighbours.ids.tolist(), strict=True)
    ]
