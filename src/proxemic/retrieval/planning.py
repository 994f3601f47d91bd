"""Predict memory, disk and time of a gallery of any size from measurements of smaller galleries."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from proxemic.errors import UserError

MEASURED = "measured_galleries.csv"
"""The file of measurements, written by `benchmarks/galleries.py`."""

FITTED = (100_000, 300_000, 1_000_000)
"""Sizes of the galleries to which the laws are fitted; larger galleries measure the error of the prediction."""

QUANTITIES = ("memory", "disk", "build", "query")

_USABLE = 0.8  # of a machine's memory
_MOST_ROWS, _MOST_DIM = 10**12, 10**5

Law = Sequence[Callable[[float], float]]


def _constant(_: float) -> float:
    return 1.0


_LINEAR: Law = (lambda n: n,)
_WITH_BASE: Law = (_constant, lambda n: n)

# The terms of each quantity, by index. Bytes, and a comparison with all rows, grow linearly. Searching a graph grows
# with the logarithm; its constant may be negative, as the processor's caches hold more of a small graph. The 2√n lists
# of ivfpq have about √n/2 rows each.
_LAWS: Mapping[str, Mapping[str, Law]] = {
    "exact": {"memory": _WITH_BASE, "disk": _LINEAR, "build": _LINEAR, "query": _WITH_BASE},
    "hnsw": {
        "memory": _WITH_BASE,
        "disk": _LINEAR,
        "build": (lambda n: n * math.log2(n),),
        "query": (_constant, math.log2),
    },
    "ivfpq": {
        "memory": _WITH_BASE,
        "disk": _LINEAR,
        "build": (lambda n: n, lambda n: n**1.5),
        "query": (_constant, math.sqrt),
    },
}

_MAY_FALL = ("hnsw", "query", _constant)  # the only factor that may be below 0


@dataclass(frozen=True)
class Measurement:
    """Measured needs of a gallery.

    Args:
        store: ``folder``, ``postgresql`` or ``milvus-lite``.
        index: ``exact``, ``hnsw`` or ``ivfpq``.
        rows: Number of rows.
        dim: Numbers of a vector.
        memory: Bytes of vectors and index that a search, or a server, holds in memory.
        disk: Bytes on disk.
        build: Seconds to add all rows and to build the index.
        query: Seconds of one query for the ten nearest rows, on one thread.
        recall: Share of the ten nearest rows that a query finds.
    """

    store: str
    index: str
    rows: int
    dim: int
    memory: float
    disk: float
    build: float
    query: float
    recall: float


@dataclass(frozen=True)
class GalleryNeeds:
    """Predicted needs of a gallery in one store with one index.

    Args:
        store: The store, as in `Measurement`.
        index: The index, as in `Measurement`.
        memory: Bytes in memory.
        disk: Bytes on disk.
        machines: Machines whose memory holds the gallery together; more than 1 need a store that divides it, as Milvus
            does.
        build: Seconds to add all rows and to build the index, on a machine like the measured one.
        query: Seconds of one query, on one thread.
        recall: Share of the ten nearest rows found at the largest measured size.
        errors: Predicted over measured value of each quantity at `checked_at`; empty if no larger size was measured.
        checked_at: The largest measured size beyond those fitted, or None.
    """

    store: str
    index: str
    memory: float
    disk: float
    machines: int
    build: float
    query: float
    recall: float
    errors: Mapping[str, float]
    checked_at: int | None


def plan_gallery(rows: int, dim: int, *, machine_memory: int = 64 * 10**9) -> list[GalleryNeeds]:
    """Predict the needs of a gallery in each store with each index, by laws fitted to smaller galleries.

    Each quantity is a sum of one or two terms of the number of rows n (bytes: 1 and n; exact search: 1 and n; hnsw:
    n·log n to build, 1 and log n to search; ivfpq: n and n√n to build, 1 and √n to search). Their factors minimise the
    relative error for galleries of 10⁵, 3·10⁵ and 10⁶ vectors. All quantities are proportional to `dim`.

    Args:
        rows: Rows of the gallery, from 1.
        dim: Numbers of a vector, from 1.
        machine_memory: Bytes of memory of a machine; the plan uses four fifths of it.

    Returns:
        The needs for each combination of store and index that was measured.

    Raises:
        UserError: If a number is out of range.

    >>> {needs.index for needs in plan_gallery(10**9, 128) if needs.store == "folder"} >= {"exact", "hnsw", "ivfpq"}
    True
    """
    for name, value, most in (("gallery", rows, _MOST_ROWS), ("dim", dim, _MOST_DIM)):
        if not 1 <= value <= most:
            raise UserError(f"--{name} is {value:,}, but must be from 1 to {most:,}.")
    if machine_memory < 10**9:
        raise UserError(f"a machine of {machine_memory:,} bytes holds no gallery: give 1 GB or more.")
    planned = []
    for (store, index), taken in read_measurements().items():
        fitted = [item for item in taken if item.rows in FITTED]
        largest = max(taken, key=lambda item: item.rows)
        predicted = {name: _predict(fitted, index, name, rows, dim) for name in QUANTITIES}
        errors = {
            name: _predict(fitted, index, name, largest.rows, largest.dim) / getattr(largest, name)
            for name in (QUANTITIES if largest.rows > max(FITTED) else ())
        }
        machines = math.ceil(predicted["memory"] / (_USABLE * machine_memory))
        facts = {"recall": largest.recall, "errors": errors, "checked_at": largest.rows if errors else None}
        planned.append(GalleryNeeds(store, index, **predicted, machines=machines, **facts))
    return planned


def read_measurements() -> dict[tuple[str, str], list[Measurement]]:
    """Read the measurements, grouped by store and index."""
    measured: dict[tuple[str, str], list[Measurement]] = {}
    with (files("proxemic.retrieval") / MEASURED).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            numbers: dict[str, Any] = {name: float(row[name]) for name in (*QUANTITIES, "recall")}
            measurement = Measurement(row["store"], row["index"], int(row["rows"]), int(row["dim"]), **numbers)
            measured.setdefault((measurement.store, measurement.index), []).append(measurement)
    return measured


def _predict(fitted: Sequence[Measurement], index: str, name: str, rows: int, dim: int) -> float:
    law = _LAWS[index][name]
    terms = np.array([[term(item.rows) for term in law] for item in fitted])
    values = np.array([getattr(item, name) for item in fitted])
    from scipy.optimize import lsq_linear

    least = [-np.inf if (index, name, term) == _MAY_FALL else 0.0 for term in law]
    factors = lsq_linear(terms / values[:, None], np.ones(len(fitted)), (least, np.inf), method="bvls").x
    # A law with a negative constant does not hold below the fitted sizes.
    predicted = float(factors @ [term(rows) for term in law])
    return max(predicted, min(values) if min(least) < 0 else 0.0) * dim / fitted[0].dim
