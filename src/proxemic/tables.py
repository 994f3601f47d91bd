"""Format tables: rows of named columns for the terminal, or as Markdown, CSV or JSON."""

import csv
import io
import json
import math
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import printable, spreadsheet_cell, write_text

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "markdown"}
"""The format of a file by the suffix of its name."""

MISSING = "–"
"""Shows a missing value in tables for people."""

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Bytes of each unit."""


@dataclass(frozen=True)
class Table:
    """Rows of named columns; None and NaN are missing values: `MISSING` for people, empty in CSV, null in JSON.

    People see the title above the table and the notes below it. ``align`` has a letter per column, ``l`` or ``r``; an
    empty text aligns the first column to the left and the others to the right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    notes: Sequence[str] = ()
    align: str = ""

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, object]]) -> "Table":
        """Make a table from mappings; the keys of the first are the columns."""
        columns = list(records[0])
        return cls(columns, [[record[column] for column in columns] for record in records])

    @property
    def records(self) -> list[dict[str, object]]:
        """The rows as mappings from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def cells(self) -> list[list[str]]:
        """The cells as texts for people."""
        return [[MISSING if _is_missing(value) else printable(str(value)) for value in row] for row in self.rows]

    @property
    def sides(self) -> str:
        """The alignment of each column, ``l`` or ``r``."""
        return self.align or "l" + "r" * (len(self.columns) - 1)

    def text(self, form: Format = "table") -> str:
        """Format the table; CSV and JSON leave out the title and the notes.

        Characters that would control a terminal are escaped. To read such names back, use JSON.
        """
        if form == "json":
            return json.dumps(without_nan(self.records), indent=2)
        if form == "csv":
            text = io.StringIO()
            shown = [[printable(value) if isinstance(value, str) else value for value in row] for row in self.rows]
            rows = [map(spreadsheet_cell, row) for row in without_nan(shown)]
            csv.writer(text, lineterminator="\n").writerows([self.columns, *rows])
            return text.getvalue().rstrip("\n")
        if form == "table":
            return terminal_text([self])
        sides = [{"l": "---", "r": "--:"}[side] for side in self.sides]
        lines = self.columns, sides, *self.cells
        escaped = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
        # Markdown takes a line right below a table for a row.
        title, notes = ([self.title, ""] if self.title else []), (["", *self.notes] if self.notes else [])
        return "\n".join([*title, *(f"| {line} |" for line in escaped), *notes])

    def write(self, path: Path) -> None:
        """Write the table to a file, in the format of its suffix."""
        write_text(path, self.text(format_of(path)) + "\n")


def format_of(path: Path) -> Format:
    """Return the format of the suffix of ``--out``."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"--out is {path}, but must end in .json, .csv or .md, which sets its format.")
    return FORMATS[path.suffix.lower()]


def counted(number: int, singular: str, plural: str = "") -> str:
    """Format a number with the noun that it counts.

    >>> counted(1, "image"), counted(1200, "image"), counted(0, "class", "classes")
    ('1 image', '1,200 images', '0 classes')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def percent(value: float | None) -> str:
    """Format a value in [0, 1] in percent with two digits, or `MISSING`.

    >>> percent(0.92614), percent(None), percent(math.nan)
    ('92.61', '–', '–')
    """
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.2f}"


def size_text(size: int) -> str:
    """Format a number of bytes in the unit that leaves one to three digits before the point; 0 is a dash.

    >>> size_text(1_234_567), size_text(999_600), size_text(0)
    ('1.23 MB', '1000 KB', '–')
    """
    if size == 0:
        return MISSING
    unit = next(unit for unit in reversed(UNITS) if size >= UNITS[unit])
    value = size / UNITS[unit]
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def without_nan(content: Any) -> Any:
    """Replace NaN, which JSON lacks, by None in nested lists and mappings.

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


def terminal_text(tables: Sequence[Table]) -> str:
    """Format tables for the terminal, with an empty line between them; a common folder of all paths is named once.

    Lines are wrapped only if the output is a terminal.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000
    layouts = [[[row[place] for row in table.cells] for place in range(len(table.columns))] for table in tables]
    root = _common_folder([path for columns in layouts for column in columns if _are_paths(column) for path in column])
    texts = []
    for table, columns in zip(tables, layouts, strict=True):
        shortened = [
            [path.removeprefix(root) for path in column] if _are_paths(column) else column for column in columns
        ]
        drawn = _drawn(table, shortened, width) or _wrapped(table, shortened, width)
        texts.append("\n".join([*filter(None, [table.title]), drawn, *table.notes]))
    return "\n\n".join(texts) + f"\nPaths are relative to {root[:-1]}" * bool(root)


def _drawn(table: Table, columns: Sequence[Sequence[str]], width: int) -> str | None:
    """Draw a table as rich does, which takes long to import; None if it does not fit, or letters are wide."""
    texts = [[name, *column] for name, column in zip(table.columns, columns, strict=True)]
    if not all(text.isascii() or all(map(_is_narrow, text)) for column in texts for text in column):
        return None
    widths = [max(map(len, column)) for column in texts]
    if sum(widths) + 3 * len(widths) + 1 > width:
        return None
    sides = [{"l": "<", "r": ">"}[side] for side in table.sides]

    def line(cells: Sequence[str], wall: str) -> str:
        padded = (f" {cell.rstrip():{side}{size}} " for cell, side, size in zip(cells, sides, widths, strict=True))
        return f"{wall}{wall.join(padded)}{wall}"

    def rule(left: str, stroke: str, cross: str, right: str) -> str:
        return left + cross.join(stroke * (size + 2) for size in widths) + right

    head, *rows = zip(*texts, strict=True)
    top, below, bottom = rule("┏", "━", "┳", "┓"), rule("┡", "━", "╇", "┩"), rule("└", "─", "┴", "┘")
    return "\n".join([top, line(head, "┃"), below, *(line(row, "│") for row in rows), bottom])


def _is_narrow(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) not in "WF" and unicodedata.category(letter)[0] not in "MC"


def _wrapped(table: Table, columns: Sequence[Sequence[str]], width: int) -> str:
    with optional_dependency("train"):
        from rich.console import Console
        from rich.table import Table as RichTable

    made = RichTable()
    for name, side in zip(table.columns, table.sides, strict=True):
        made.add_column(name, justify="left" if side == "l" else "right", overflow="fold")  # show names in full
    for row in zip(*columns, strict=True):
        made.add_row(*row)
    # Class names of users are not markup.
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    with console.capture() as capture:
        console.print(made)
    return capture.get().rstrip("\n")


def _are_paths(column: Sequence[str]) -> bool:
    return all(re.match(r"/|[A-Za-z]:[/\\]|[a-z][a-z\d+.-]*://", item) for item in column if item not in ("", MISSING))


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that several paths lie in, with a slash at its end; empty if there is none."""
    folders = [path.split("/")[:-1] for path in {*paths} - {"", MISSING}]
    levels = takewhile(lambda names: len({*names}) == 1, zip(*folders, strict=False))
    shared = [name for name, *_ in levels] if len(folders) > 1 else []
    return "/".join([*shared, ""]) if len(shared) > 1 else ""
