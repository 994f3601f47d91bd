"""What a gallery knows of its images beside their vectors: a table, and conditions on it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from proxemic.extras import optional_dependency
from proxemic.files import readable

with optional_dependency("train"):
    import pyarrow as pa
    from pyarrow.compute import is_in  # pyright: ignore[reportAttributeAccessIssue]

Where = Mapping[str, str | Sequence[str | None] | None]
"""The value, or the values one of which is enough, that columns must have; None is an empty cell. All must hold."""

OWN = ("id", "path", "label")
"""The columns that every gallery has; only a label may be empty."""

STAMP = "file_stamp"
"""The column with the size and time of each picture's file when it was embedded, which users do not see."""

_TAKEN = (*OWN, "distance", STAMP)  # which stands beside them in what is found


def further_columns(names: Iterable[str]) -> list[str]:
    """Return the columns that a user gave, in their order."""
    return [name for name in names if name not in (*OWN, STAMP)]


def make_items(
    paths: Sequence[str],
    labels: Sequence[str | None] | None = None,
    columns: Mapping[str, Sequence[str | None]] | None = None,
    stamps: Sequence[str | None] | None = None,
) -> pa.Table:
    """A table of texts with the columns `path`, `label`, further ones and, if given, `STAMP`.

    Raises:
        ValueError: If columns differ in length, are named as one of `OWN` or distance, or hold anything but texts.

    >>> make_items(["a.jpg", "b.jpg"], ["cat", None], {"shop": ["x", "y"]}).column_names
    ['path', 'label', 'shop']
    """
    given = {"path": paths, "label": [None] * len(paths) if labels is None else labels, **(columns or {})}
    if taken := [name for name in columns or {} if name in _TAKEN or not name]:
        raise ValueError(f"a further column is named {taken[0]!r}, but {', '.join(_TAKEN)} are taken: rename it")
    if stamps is not None:
        given[STAMP] = stamps
    for name, values in given.items():
        if len(values) != len(paths):
            raise ValueError(f"{name} has {len(values):,} entries, but there are {len(paths):,} paths")
    if any(not path for path in paths):
        raise ValueError("a path is empty, but items are known by theirs")
    try:
        return pa.table({name: pa.array(_texts(values), pa.string()) for name, values in given.items()})
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"columns hold texts or None: {error}") from error


def _texts(values: Sequence[str | None]) -> list[str | None]:
    return [value if value is None else readable(value) for value in values]


def check_where(where: Where | None, columns: Sequence[str]) -> dict[str, tuple[str | None, ...]]:
    """Each condition as a tuple of values; `ValueError` where a column is not there, or has no value to be."""
    conditions = {}
    for name, value in (where or {}).items():
        if name not in columns or name == "id":
            known = ", ".join(("path", "label", *further_columns(columns)))
            raise ValueError(f"the gallery has no column {name!r}: its columns are {known}.")
        conditions[name] = tuple(_texts((value,) if isinstance(value, str | None) else value))
        if not conditions[name]:
            raise ValueError(f"the condition on {name} allows no value: give one, or leave it out.")
    return conditions


def matching(table: pa.Table, conditions: Mapping[str, Sequence[str | None]]) -> Bool[np.ndarray, " rows"]:
    """Which rows meet all conditions of `check_where`.

    >>> matching(make_items(["a", "b", "c"], ["cat", "dog", None]), {"label": ("cat", None)}).tolist()
    [True, False, True]
    """
    mask = np.ones(len(table), bool)
    for name, values in conditions.items():
        # Rows that were added before a column was there have none of it.
        column: Any = table[name] if name in table.column_names else pa.nulls(len(table), pa.string())
        mask &= is_in(column, value_set=pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return mask
