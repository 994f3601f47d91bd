"""Tables in CSV and Parquet with the columns path, label and perhaps split, is_query, is_gallery."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from proxemic.extras import how_to_install

SplitName = Literal["train", "validation", "test"]
SPLITS: dict[str, SplitName] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}

_FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False, "": None, "nan": None}
_MOST_BYTES, _MOST_ROWS = 4 * 2**30, 2**26  # a table is held in memory
_COLUMNS = ("path", "label", "split", "is_query", "is_gallery")


@dataclass(frozen=True)
class Row:
    """One image: its file, the text of its label, and what the user says of its use (None: nothing)."""

    path: Path
    label: str
    split: SplitName | None = None
    is_query: bool | None = None
    is_gallery: bool | None = None


@dataclass(frozen=True)
class Note:
    """What a table says of one row of embeddings, as text; None where it has no such column, or no such flag."""

    path: str | None = None
    label: str | None = None
    is_query: bool | None = None
    is_gallery: bool | None = None


def read_table(table: Path) -> Iterator[Row]:
    """Read the images that a .csv or .parquet file names; every value is taken as text.

    Raises:
        ValueError: it is no such table, lacks a column, or has a row with a value that is missing or not allowed.
    """
    for place, record in _read(table, _COLUMNS, needed=("path", "label")):
        if not record["path"]:
            raise ValueError(f"{place}: path is empty.")
        if not record["label"] or record["label"] == "nan":
            raise ValueError(f"{place}: label is empty, but every image needs one.")
        # An absolute path stays what it is.
        path = table.parent / record["path"]
        is_query, is_gallery = (_flag(record, column, place) for column in ("is_query", "is_gallery"))
        yield Row(path, record["label"], _split(record, place), is_query, is_gallery)


def read_notes(table: Path, needed: Sequence[str] = ()) -> Iterator[Note]:
    """Read what a .csv or .parquet file says of rows of embeddings: any of path, label, is_query and is_gallery.

    Args:
        table: the file; it may have other columns.
        needed: columns that must be there.

    Raises:
        ValueError: as `read_table`, where a column is there.
    """
    for place, record in _read(table, ("path", "label", "is_query", "is_gallery"), needed):
        for column in ("path", "label"):
            if column in record and record[column] in ("", "nan"):
                raise ValueError(f"{place}: {column} is empty, but others are not: give every row one, or none.")
        is_query, is_gallery = (_flag(record, column, place) for column in ("is_query", "is_gallery"))
        yield Note(record.get("path"), record.get("label"), is_query, is_gallery)


def _read(table: Path, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    if not table.is_file():  # a pipe would be waited for, a device read without end
        raise ValueError(f"{table} is no regular file: give a .csv or .parquet table.")
    if (size := table.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"{table} has {size:,} bytes, but a table may have {_MOST_BYTES:,}: split it.")
    records = _read_csv if table.suffix.lower() == ".csv" else _read_parquet
    for place, record in records(table, wanted, needed):
        yield f"{table}, {place}", record


def _split(record: dict[str, str], place: str) -> SplitName | None:
    if "split" not in record:
        return None
    split = SPLITS.get(record["split"].lower())
    if split is None:
        raise ValueError(f"{place}: split is {record['split']!r}, but it must be train, validation (or val) or test.")
    return split


def _flag(record: dict[str, str], column: str, place: str) -> bool | None:
    text = record.get(column, "")
    if text.lower() not in _FLAGS:
        raise ValueError(f"{place}: {column} is {text!r}, but it must be true or false.")
    return _FLAGS[text.lower()]


def _read_csv(table: Path, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = _known_columns(table, reader.fieldnames or (), wanted, needed)
            for record in reader:
                place = f"line {reader.line_num}"
                if None in record or None in record.values():
                    raise ValueError(f"{table}, {place}: the number of fields is not that of the header.")
                yield place, {column: record[column].strip() for column in columns}
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{table} is not a CSV table in UTF-8 ({error}).") from error


def _read_parquet(table: Path, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{table} needs pyarrow to be read: {how_to_install('train')}.") from error
    try:
        with pyarrow.parquet.ParquetFile(table) as file:
            if file.metadata.num_rows > _MOST_ROWS:  # which compressed are few bytes
                raise ValueError(f"{table} has {file.metadata.num_rows:,} rows, but may have {_MOST_ROWS:,}: split it.")
            columns = _known_columns(table, file.schema_arrow.names, wanted, needed)
            batches = file.iter_batches(columns=list(columns)) if columns else ()
            records = (record for batch in batches for record in batch.to_pylist())
            for number, record in enumerate(records, start=1):
                texts = {key: "" if value is None else str(value).strip() for key, value in record.items()}
                yield f"row {number}", texts
    except (pyarrow.ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{table} is not a Parquet table ({why}).") from error


def _known_columns(table: Path, names: Sequence[str], wanted: Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    missing = [column for column in needed if column not in names]
    if missing:
        raise ValueError(
            f"{table} has no column {' and '.join(missing)}: its columns are {', '.join(names) or 'none'}, "
            f"and {' and '.join(needed)} {'are' if len(needed) > 1 else 'is'} needed."
        )
    if ("is_query" in names) != ("is_gallery" in names):
        raise ValueError(f"{table} has only one of the columns is_query and is_gallery: give both or neither.")
    twice = [column for column in wanted if list(names).count(column) > 1]
    if twice:
        raise ValueError(f"{table} has more than one column {twice[0]}: keep one.")
    return tuple(column for column in wanted if column in names)
