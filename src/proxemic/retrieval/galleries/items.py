"""Metadata of a gallery's rows: a table of texts, and conditions on its columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from proxemic.arrow import as_texts
from proxemic.data.rows import NAMES, Rows
from proxemic.extras import optional_dependency
from proxemic.files import readable
from proxemic.spelling import canonical

with optional_dependency("train"):
    import pyarrow as pa
    from pyarrow.compute import is_in  # pyright: ignore[reportAttributeAccessIssue]

Where = Mapping[str, str | Sequence[str | None] | None]
"""Filter: the allowed value or values of each column (None for an empty cell); all columns must match."""

OWN = ("id", "path", "label")
"""The columns that every gallery has; only a label may be empty."""

STAMP = "file_stamp"
"""A hidden column: size and times of each image's file when it was embedded, and its box."""

_TAKEN = ("id", "distance", STAMP)  # search results have a distance next to the columns


def further_columns(names: Iterable[str]) -> list[str]:
    """Return the columns that the user added, in order."""
    return [name for name in names if name not in (*OWN, STAMP)]


def check_columns(names: Iterable[str]) -> None:
    """Raise `ValueError` if a user's column has a name that the gallery itself uses."""
    if taken := [name for name in names if name in _TAKEN or not name]:
        raise ValueError(f"a further column is named {taken[0]!r}, but {', '.join(_TAKEN)} are taken: rename it.")


def make_items(rows: Rows) -> pa.Table:
    """Return the columns of rows as a gallery stores them: as texts, `path` and `label` first.

    Raises:
        ValueError: If a path is empty.

    >>> make_items(Rows.of(shop=["x", "y"], path=["a.jpg", "b.jpg"])).column_names
    ['path', 'label', 'shop']
    """
    if not rows.has("label"):
        rows = rows.with_texts(label=[None] * len(rows))
    if rows.columns["path"].null_count or "" in rows.names:
        raise ValueError("a path is empty, but items are known by theirs.")
    names = ["path", "label", *(name for name in rows.columns.column_names if name not in OWN)]
    return pa.table({name: rows.columns[name].cast(pa.string()) for name in names})


def check_where(where: Where | None, columns: Sequence[str]) -> dict[str, tuple[str | None, ...]]:
    """Return the allowed values of each column as tuples; `ValueError` for an unknown column or no values."""
    conditions = {}
    for name, value in (where or {}).items():
        if name not in columns or name == "id":
            known = ", ".join(("path", "label", *further_columns(columns)))
            raise ValueError(f"the gallery has no column {name!r}: its columns are {known}.")
        texts = [text and readable(text) for text in ((value,) if isinstance(value, str | None) else value)]
        conditions[name] = tuple(texts if name in NAMES else [text and canonical(text) for text in texts])
        if not conditions[name]:
            raise ValueError(f"the condition on {name} allows no value: give one, or leave it out.")
    return conditions


def matching(table: pa.Table, conditions: Mapping[str, Sequence[str | None]]) -> Bool[np.ndarray, " rows"]:
    """Return which rows meet all conditions of `check_where`.

    >>> matching(Rows.of(path=[*"abc"], label=["cat", "dog", None]).columns, {"label": ("cat", None)}).tolist()
    [True, False, True]
    """
    mask = np.ones(len(table), bool)
    for name, values in conditions.items():
        # Rows that are older than a column have no value in it.
        column: Any = table[name] if name in table.column_names else pa.nulls(len(table), pa.string())
        mask &= is_in(column, value_set=as_texts(values)).to_numpy(zero_copy_only=False)
    return mask
