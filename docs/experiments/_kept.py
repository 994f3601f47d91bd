"""Read and write the Parquet tables of `kept/`, which hold everything that the experiments made.

A table has one row per run, search, trial or epoch. A new row replaces the one with the same key. Rows are sorted by
key, so that the same rows always give the same file. Writing replaces the file as a whole, in turn with other programs,
so that a kill at any time leaves either the old or the new rows.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from proxemic.files import write_atomically
from proxemic.locks import lock_in_turn

if find_spec("optuna") is None:  # as after `make demo`
    raise SystemExit("The programs of docs/experiments need all extras: run make setup first.")

Row = dict[str, Any]
METRICS = {"recall@1": "Recall@1", "map@r": "MAP@R", "ndcg@8": "nDCG@8"}
"""The metrics with their names in tables."""
ALL_METRICS = (*METRICS, "recall@8")
MEASURES = {
    "tar": "TAR at a FAR of 0.001",
    "nmi": "NMI",
    "avg_dtp": "AvgDTP",
    "alignment": "rise of the cosine of forces",
    "within": "images within α",
    "corrupted": "Recall@1, corrupted",
}
"""What only some runs measure, with its name in tables."""
TEXT, COUNT, NUMBER = pa.string(), pa.int64(), pa.float64()


class Layout(NamedTuple):
    """The columns of a table with their types; those of the key come first."""

    key: Mapping[str, pa.DataType]
    values: Mapping[str, pa.DataType]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return pa.schema([*self.key.items(), *self.values.items()])

    def key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the key of a row."""
        return tuple(row[name] for name in self.key)


_RUN = Layout(
    {"dataset": TEXT, "name": TEXT, "condition": TEXT, "seed": COUNT},
    dict.fromkeys((*ALL_METRICS, *MEASURES), NUMBER)
    | {"epoch": COUNT, "diverged": pa.bool_(), "seconds": NUMBER}
    | dict.fromkeys(("recipe", "values", "commit", "versions"), TEXT),
)
TABLES = {
    "searches": Layout({"dataset": TEXT, "name": TEXT}, {"epochs": COUNT, "recipe": TEXT}),
    "trials": Layout(
        {"dataset": TEXT, "name": TEXT, "stage": COUNT, "trial": COUNT},
        {"state": TEXT, "value": NUMBER, "epochs": COUNT, "seconds": NUMBER, "values": TEXT, "failure": TEXT},
    ),
    "runs": _RUN,
    "evidence": _RUN,
    "epochs": Layout({**_RUN.key, "epoch": COUNT}, dict.fromkeys(ALL_METRICS, NUMBER)),
    "configurations": Layout({"dataset": TEXT, "name": TEXT, "configuration": COUNT}, {"values": TEXT}),
    "checks": Layout({"dataset": TEXT, "name": TEXT, "kind": TEXT, "metric": TEXT, "repeat": COUNT}, {"value": NUMBER}),
    "centres": Layout(
        {"dataset": TEXT, "name": TEXT, "seed": COUNT},
        {"loss": TEXT, "k": COUNT, "start": TEXT}
        | dict.fromkeys(("validation", "map@r", "recall@1", "bits", "chance", "most", "used", "cosine"), NUMBER)
        | {"seconds": NUMBER},
    ),
}
"""The tables by name. ``values`` is JSON: the overrides of a recipe, by dotted keys."""


def read(kept: Path, table: str, dataset: str, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a search, loss or component on a data set, sorted by key; a missing table has none."""
    return _by_name(kept, table).get((dataset, name), ())


def read_all(kept: Path, table: str) -> list[Row]:
    """Return all rows of a table."""
    return [dict(row) for rows in _by_name(kept, table).values() for row in rows]


def merge(kept: Path, table: str, rows: Iterable[Row]) -> int:
    """Add rows to a table, each instead of the one with its key; return how many are new or different."""
    layout, path = TABLES[table], _file(kept, table)
    with lock_in_turn(path):
        before = {layout.key_of(row): row for row in read_all(kept, table)}
        after = before | {layout.key_of(row): _complete(row, layout) for row in rows}
        changed = sum(row != before.get(key) for key, row in after.items())
        if changed:
            made = pa.Table.from_pylist([after[key] for key in sorted(after)], layout.schema)
            with write_atomically(path) as temporary:
                pq.write_table(made, temporary, compression="zstd", compression_level=9)
    return changed


def _complete(row: Row, layout: Layout) -> Row:
    columns = layout.schema.names
    assert {*layout.key} <= row.keys() <= {*columns}, f"columns of {row.keys()}"
    return {name: row.get(name) for name in columns}


def _file(kept: Path, table: str) -> Path:
    return kept / f"{table}.parquet"


def _by_name(kept: Path, table: str) -> Mapping[tuple[str, str], Sequence[Row]]:
    try:
        stat = _file(kept, table).stat()
    except FileNotFoundError:
        return {}
    return _read(_file(kept, table), stat.st_ino, stat.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read(path: Path, *_stamp: int) -> Mapping[tuple[str, str], Sequence[Row]]:
    """Read a table once for each state of its file."""
    found = defaultdict[tuple[str, str], list[Row]](list)
    content = pa.BufferReader(path.read_bytes())  # by its path, Arrow opens a file twice, and another may be there
    for row in pq.read_table(content).to_pylist():
        found[row["dataset"], row["name"]].append(row)
    return dict(found)
