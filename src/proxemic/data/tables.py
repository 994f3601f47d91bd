"""Tables in CSV and Parquet of images, or of what is known of rows of embeddings."""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxemic.extras import optional_dependency

Box = tuple[int, int, int, int]
Reader = Callable[[Sequence[str]], Iterator[tuple[str, dict[str, str]]]]  # of some columns: the place and text of rows
SplitName = Literal["train", "validation", "test"]
SPLITS: dict[str, SplitName] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}

_FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False, "": None, "nan": None}
_MOST_BYTES, _MOST_ROWS = 4 * 2**30, 2**26  # a table is held in memory
_CORNERS = ("x_1", "y_1", "x_2", "y_2")
IMAGE_COLUMNS = ("path", "label", "split", "is_query", "is_gallery", "sequence", "category", "subclass", *_CORNERS)
NOTE_COLUMNS = ("path", "label", "is_query", "is_gallery", "sequence", "category")


@dataclass(frozen=True)
class Row:
    """One image: its file, the text of its label, and what else the user says of it (None: nothing).

    The box is what is cut out of the upright image, x_1, y_1, x_2 and y_2 in pixels from its upper left corner; `place`
    says in messages where the row stands in the table.
    """

    path: Path
    label: str
    split: SplitName | None = None
    is_query: bool | None = None
    is_gallery: bool | None = None
    sequence: str | None = None
    category: str | None = None
    subclass: str | None = None
    box: Box | None = None
    place: str = ""

    @property
    def picture(self) -> str:
        """Identify the picture, however it is named: its resolved path, with its box if it has one."""
        return f"{self.path.resolve()}" + (f" {self.box}" if self.box else "")


def read_table(table: Path) -> Iterator[Row]:
    """Read the images that a .csv or .parquet file names; a `ValueError` names the first row that is not valid."""
    for place, record in _read(table, IMAGE_COLUMNS, needed=("path", "label")):
        if not record["path"]:
            raise ValueError(f"{place}: path is empty.")
        if not record["label"] or record["label"] == "nan":
            raise ValueError(f"{place}: label is empty, but every image needs one.")
        # An absolute path stays what it is.
        path = table.parent / record["path"]
        is_query, is_gallery = (read_flag(record, column, place) for column in ("is_query", "is_gallery"))
        sequence, category, subclass = (_text(record, column) for column in ("sequence", "category", "subclass"))
        split = SPLITS.get(record.get("split", "").lower())
        if split is None and "split" in record:
            raise ValueError(
                f"{place}: split is {record['split']!r}, but it must be train, validation (or val) or test."
            )
        box = _box(record, place)
        yield Row(path, record["label"], split, is_query, is_gallery, sequence, category, subclass, box, place)


def read_pictures(table: Path) -> Iterator[tuple[str, Box | None, dict[str, str | None]]]:
    """Read the images that a table names, which need no labels: its path, box, and the texts of all other columns."""
    check_size(table)
    with open_table(table) as (names, read):
        wanted = [name for name in dict.fromkeys(names) if name != "embedding"]
        for number, record in read(known_columns(table, names, wanted, ("path",))):
            place = f"{table}, {number}"
            if not record["path"]:
                raise ValueError(f"{place}: path is empty.")
            others = {name: _text(record, name) for name in record if name not in ("path", *_CORNERS)}
            yield record["path"], _box(record, place), others


def read_notes(table: Path, needed: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Read what a .csv or .parquet file says of rows of embeddings: one list for each of `NOTE_COLUMNS` that it has."""
    columns: dict[str, list[Any]] = {}
    for place, record in _read(table, NOTE_COLUMNS, needed):
        for column, text in record.items():
            is_empty, is_label = text in ("", "nan"), column == "label"
            if is_empty and (column == "path" or (is_label and "label" in needed)):
                raise ValueError(f"{place}: {column} is empty, but others are not: give every row one, or none.")
            is_flag, is_name = column in ("is_query", "is_gallery"), column in ("sequence", "category")
            value = read_flag(record, column, place) if is_flag else text
            if is_name or (is_label and is_empty):
                value = _text(record, column)
            columns.setdefault(column, []).append(value)
    return columns


def unused_columns(table: Path, used: Sequence[str]) -> tuple[str, ...]:
    """The columns of a .csv or .parquet file that are none of `used`, in their order."""
    with open_table(table) as (names, _):
        return tuple(dict.fromkeys(name for name in names if name not in used))


def _read(table: Path, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    check_size(table)
    with open_table(table) as (names, read):
        for place, record in read(known_columns(table, names, wanted, needed)):
            yield f"{table}, {place}", record


def check_size(table: Path) -> None:
    """Raise `ValueError` where a table is no regular file, or larger than memory should hold."""
    if not table.is_file():  # a pipe would be waited for, a device read without end
        raise ValueError(f"{table} is no regular file: give a .csv or .parquet table.")
    if (size := table.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"{table} has {size:,} bytes, but a table may have {_MOST_BYTES:,}: split it.")


def _text(record: dict[str, str], column: str) -> str | None:
    text = record.get(column, "")
    return None if text.lower() in ("", "nan") else text


def _box(record: dict[str, str], place: str) -> Box | None:
    """The whole pixels of the box, its fractions cut off as OML does; None for the whole image."""
    texts = [_text(record, column) for column in _CORNERS]
    if texts == [None] * 4:
        return None
    values = ", ".join(f"{column} {text or 'empty'}" for column, text in zip(_CORNERS, texts, strict=True))
    try:
        x_1, y_1, x_2, y_2 = (math.trunc(float(text or "nan")) for text in texts)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{place}: its box has {values}, but must have four numbers, or none.") from error
    if not (0 <= x_1 < x_2 and 0 <= y_1 < y_2):
        raise ValueError(
            f"{place}: its box has {values}, but 0 <= x_1 < x_2 and 0 <= y_1 < y_2 must hold, in whole pixels."
        )
    return x_1, y_1, x_2, y_2


def read_flag(record: dict[str, str], column: str, place: str) -> bool | None:
    """The truth value of a column, None where it is empty; `place` says in the `ValueError` where it stands."""
    text = record.get(column, "")
    if text.lower() not in _FLAGS:
        raise ValueError(f"{place}: {column} is {text!r}, but it must be true or false.")
    return _FLAGS[text.lower()]


def open_table(table: Path) -> AbstractContextManager[tuple[Sequence[str], Reader]]:
    """Open a .csv or .parquet table: its column names, and a function that reads some of its columns row by row."""
    return _open_csv(table) if table.suffix.lower() == ".csv" else _open_parquet(table)


@contextmanager
def _open_csv(table: Path) -> Iterator[tuple[Sequence[str], Reader]]:
    line = 1  # the first line of the record being read

    def read(columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
        nonlocal line
        places = {column: names.index(column) for column in columns}
        for record in records:
            if record:
                if len(record) != len(names):
                    raise ValueError(f"{table}, line {line}: the number of fields is not that of the header.")
                texts = {column: record[place].strip() for column, place in places.items()}
                if broken := [column for column in ("path", "label") if "\n" in texts.get(column, "")]:
                    raise ValueError(f"{table}, line {line}: {broken[0]} has a line break: a quote is not closed.")
                yield f"line {line}", texts
            line = records.line_num + 1

    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            records = csv.reader(file, strict=True)
            names = next((record for record in records if record), [])
            line = records.line_num + 1
            yield names, read
    except csv.Error as error:
        raise ValueError(
            f"{table}, line {line}: a quote is not closed ({error}): close it, and double the quotes within a quoted "
            "text."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is not a CSV table in UTF-8 ({error}).") from error
    except OSError as error:
        raise ValueError(f"{table} cannot be read ({error.strerror}).") from error


@contextmanager
def _open_parquet(table: Path) -> Iterator[tuple[Sequence[str], Reader]]:
    with optional_dependency("train"):
        import pyarrow
        import pyarrow.parquet

    def read(columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
        if file.metadata.num_rows > _MOST_ROWS:  # which compressed are few bytes
            raise ValueError(f"{table} has {file.metadata.num_rows:,} rows, but may have {_MOST_ROWS:,}: split it.")
        batches = file.iter_batches(columns=list(columns)) if columns else ()
        records = (record for batch in batches for record in batch.to_pylist())
        for number, record in enumerate(records, start=1):
            yield f"row {number}", {key: "" if value is None else str(value).strip() for key, value in record.items()}

    try:
        with pyarrow.parquet.ParquetFile(table) as file:
            yield file.schema_arrow.names, read
    except (pyarrow.ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{table} is not a Parquet table ({why}).") from error


def known_columns(table: Path, names: Sequence[str], wanted: Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    """Those of the wanted columns that a table has; `ValueError` where one that is needed is missing."""
    if missing := [column for column in needed if column not in names]:
        raise ValueError(
            f"{table} has no column {' and '.join(missing)}: its columns are {', '.join(names) or 'none'}, "
            f"and {' and '.join(needed)} {'are' if len(needed) > 1 else 'is'} needed."
            + " For its vectors take the recipe own-vectors."
            * ("embedding" in names and "path" in missing)
        )
    if ("is_query" in names) != ("is_gallery" in names):
        raise ValueError(f"{table} has only one of the columns is_query and is_gallery: give both or neither.")
    corners = [column for column in _CORNERS if column in names]
    if "x_1" in wanted and 0 < len(corners) < 4:
        raise ValueError(f"{table} has of a box only {', '.join(corners)}: give x_1, y_1, x_2 and y_2, or none.")
    if twice := [column for column in wanted if list(names).count(column) > 1]:
        raise ValueError(f"{table} has more than one column {twice[0]}: keep one.")
    return tuple(column for column in wanted if column in names)
