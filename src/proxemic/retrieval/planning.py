"""Predict the memory, disk and time of a gallery of any size, from measurements of smaller ones."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from proxemic.errors import UserError

MEASURED = "measured_galleries.csv"
"""What `benchmarks/galleries.py` wrote."""

FITTED = (100_000, 300_000, 1_000_000)
"""The rows of galleries that the laws are fitted to; larger ones measure their error."""

QUANTITIES = ("memory", "disk", "build", "query")

_USABLE = 0.8  # of a machine's memory
_MOST_ROWS, _MOST_DIM = 10**12, 10**5

Law = Sequence[Callable[[float], float]]


def _constant(_: float) -> float:
    return 1.0


_LINEAR: Law = (lambda n: n,)
_WITH_BASE: Law = (_constant, lambda n: n)

# What a quantity grows with, by the index. Bytes grow with the rows and little else, as does a comparison with all of
# them. A graph's search grows with the logarithm: a line that crosses 0 left of all sizes, as of a small graph more is
# in the processor's caches. The lists of ivfpq, 2√n, have √n rows each.
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
    """What a gallery took.

    Args:
        store: ``folder``, ``postgresql`` or ``milvus-lite``.
        index: ``exact``, ``hnsw`` or ``ivfpq``.
        rows: Its rows.
        dim: Numbers of a vector.
        memory: Bytes that searching holds, or that a server should hold, of vectors and index.
        disk: Bytes.
        build: Seconds to add all rows and to make the index.
        query: Seconds of one query for the ten nearest, by one thread.
        recall: Share of the ten nearest that were found.
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
    """What a gallery will take in one store and index.

    Args:
        store: As of `Measurement`.
        index: As of `Measurement`.
        memory: Bytes that searching holds.
        disk: Bytes.
        machines: So many whose memory holds it together; above 1 a store must divide it, as Milvus does.
        build: Seconds to add all rows and to make the index, on one machine as the measured one.
        query: Seconds of one query, by one thread.
        recall: Share of the ten nearest that were found at the largest size that was measured.
        errors: Predicted over measured, of each quantity, at the largest size beyond those that were fitted; nothing
            where none was measured.
        checked_at: That size.
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
    """Say what a gallery takes in each store with each index, from a model fitted to smaller ones.

    Each quantity is a sum of one or two terms of the rows n (bytes: 1 and n; exact search: 1 and n; hnsw: n·log n to
    build and 1 and log n to search; ivfpq: n and n√n to build and 1 and √n to search). Their factors are fitted to what
    galleries of 10⁵, 3·10⁵ and 10⁶ vectors took, relative to it. Bytes and seconds of comparisons grow with dim as the
    bytes of a vector do.

    Args:
        rows: Rows of the gallery, from 1.
        dim: Numbers of a vector, from 1.
        machine_memory: Bytes of memory of a machine, of which four fifths are used.

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
    """Read the measurements of each store and index."""
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
    # A line that falls is none of galleries smaller than those that it was fitted to.
    predicted = float(factors @ [term(rows) for term in law])
    return max(predicted, min(values) if min(least) < 0 else 0.0) * dim / fitted[0].dim
