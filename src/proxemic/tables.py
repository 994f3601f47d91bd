"""One formatter of tables: rows of named columns as a terminal table, Markdown, CSV or JSON."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_text

with optional_dependency("train"):
    from rich.console import Console
    from rich.table import Table as RichTable

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "markdown"}
"""The format of a file by the ending of its name."""

MISSING = "–"
"""Stands in tables for people where there is no value."""


@dataclass(frozen=True)
class Table:
    """Rows of named columns.

    Args:
        columns: The names of the columns.
        rows: One cell per column. Text is shown as it is, other values by ``str``. None and NaN are missing values:
            `MISSING` for people, an empty cell in CSV, null in JSON.
        title: Stands above the table for people.
        notes: Lines below the table for people.
        align: ``l`` (left) or ``r`` (right) per column; empty aligns all columns but the first to the right.

    >>> table = Table(["loss", "recall@1"], [["ArcFaceLoss", "92.61"], ["HISTLoss", None]])
    >>> print(table.text("markdown"))
    | loss | recall@1 |
    | --- | --: |
    | ArcFaceLoss | 92.61 |
    | HISTLoss | – |
    >>> print(table.text())
    ┏━━━━━━━━━━━━━┳━━━━━━━━━━┓
    ┃ loss        ┃ recall@1 ┃
    ┡━━━━━━━━━━━━━╇━━━━━━━━━━┩
    │ ArcFaceLoss │    92.61 │
    │ HISTLoss    │        – │
    └─────────────┴──────────┘
    >>> print(Table(["loss", "recall@1"], [["ArcFaceLoss", 0.9261], ["HISTLoss", math.nan]]).text("csv"))
    loss,recall@1
    ArcFaceLoss,0.9261
    HISTLoss,
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    notes: Sequence[str] = ()
    align: str = ""

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, object]], title: str = "", notes: Sequence[str] = ()) -> "Table":
        """Make a table of mappings, whose columns are those of the first."""
        columns = list(records[0])
        return cls(columns, [[record[column] for column in columns] for record in records], title, notes)

    @property
    def records(self) -> list[dict[str, object]]:
        """The rows as mappings from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def text(self, form: Format = "table") -> str:
        """Lay the table out; title and notes are left out of CSV and JSON."""
        if form == "csv":
            return self._csv()
        if form == "json":
            return json.dumps(without_nan(self.records), indent=2)
        cells = [[MISSING if _is_missing(cell) else str(cell) for cell in row] for row in self.rows]
        align = self.align or "l" + "r" * (len(self.columns) - 1)
        if form == "markdown":  # a line that follows a table at once would be a row of it
            title, notes = ([self.title, ""] if self.title else []), (["", *self.notes] if self.notes else [])
            return "\n".join([*title, _markdown(self.columns, cells, align), *notes])
        return "\n".join([*([self.title] if self.title else []), _terminal(self.columns, cells, align), *self.notes])

    def write(self, path: Path) -> None:
        """Write a file, whole or not at all, in the format that its name ends in.

        Raises:
            UserError: If the name does not end in .json, .csv or .md, or the file cannot be written.
        """
        write_text(path, self.text(format_of(path)) + "\n")

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if _is_missing(cell) else cell for cell in row] for row in self.rows)
        return text.getvalue().rstrip("\n")


def format_of(path: Path, name: str = "--out") -> Format:
    """The format that the ending of a file's name stands for.

    Args:
        path: The file.
        name: What the user calls it, for the message.

    Raises:
        UserError: If the ending is another than those of `FORMATS`.

    >>> format_of(Path("tables/one.md"))
    'markdown'
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{name} is {path}, but must end in .json, .csv or .md, which says its format.")
    return FORMATS[path.suffix.lower()]


def percent(value: float | None) -> str:
    """A value in [0, 1] in percent with two digits, or `MISSING`.

    >>> percent(0.92614), percent(None), percent(math.nan)
    ('92.61', '–', '–')
    """
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.2f}"


def without_nan(content: Any) -> Any:
    """Nested lists and mappings with None in place of NaN, which JSON does not have.

    >>> without_nan({"low": math.nan, "high": [0.5]})
    {'low': None, 'high': [0.5]}
    """
    if isinstance(content, Mapping):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if _is_missing(content) else content


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    lines = [columns, [{"l": "---", "r": "--:"}[side] for side in align], *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _terminal(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    table = RichTable()
    for name, side in zip(columns, align, strict=True):
        table.add_column(name, justify="left" if side == "l" else "right", overflow="fold")  # names are shown whole
    for row in rows:
        table.add_row(*row)
    # The names that users give their classes are no markup.
    console = Console(markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")
