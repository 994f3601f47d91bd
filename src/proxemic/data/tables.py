"""Tables that name images: CSV and Parquet with the columns path, label and perhaps split, is_query, is_gallery."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SplitName = Literal["train", "validation", "test"]
SPLITS: dict[str, SplitName] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}

_FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False, "": None, "nan": None}
_COLUMNS = ("path", "label", "split", "is_query", "is_gallery")


@dataclass(frozen=True)
class Row:
    """One image: its file, the text of its label, and what the user says of its use (None: nothing)."""

    path: Path
    label: str
    split: SplitName | None = None
    is_query: bool | None = None
    is_gallery: bool | None = None


def read_table(table: Path) -> Iterator[Row]:
    """Read the rows of a .csv or .parquet file; every value is taken as text.

    Raises:
        ValueError: it is no such table, lacks a column, or has a row with a value that is missing or not allowed.
    """
    records = _read_csv(table) if table.suffix.lower() == ".csv" else _read_parquet(table)
    for place, record in records:
        if not record["path"]:
            raise ValueError(f"{table}, {place}: path is empty.")
        if not record["label"] or record["label"] == "nan":
            raise ValueError(f"{table}, {place}: label is empty, but every image needs one.")
        # An absolute path stays what it is.
        path = table.parent / record["path"]
        is_query, is_gallery = (_flag(record, column, f"{table}, {place}") for column in ("is_query", "is_gallery"))
        yield Row(path, record["label"], _split(record, f"{table}, {place}"), is_query, is_gallery)


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


def _read_csv(table: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = _known_columns(table, reader.fieldnames or ())
            for record in reader:
                place = f"line {reader.line_num}"
                if None in record or None in record.values():
                    raise ValueError(f"{table}, {place}: the number of fields is not that of the header.")
                yield place, {column: record[column].strip() for column in columns}
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{table} is not a CSV table in UTF-8 ({error}).") from error


def _read_parquet(table: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{table} needs pyarrow to be read: pip install 'proxemic[train]'.") from error
    try:
        with pyarrow.parquet.ParquetFile(table) as file:
            columns = _known_columns(table, file.schema_arrow.names)
            records = file.read(columns=list(columns)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{table} is not a Parquet table ({error}).") from error
    for number, record in enumerate(records, start=1):
        yield f"row {number}", {key: "" if value is None else str(value).strip() for key, value in record.items()}


def _known_columns(table: Path, names: Sequence[str]) -> tuple[str, ...]:
    missing = [column for column in ("path", "label") if column not in names]
    if missing:
        raise ValueError(
            f"{table} has no column {' and '.join(missing)}: its columns are {', '.join(names) or 'none'}, "
            "and path and label are needed."
        )
    if ("is_query" in names) != ("is_gallery" in names):
        raise ValueError(f"{table} has only one of the columns is_query and is_gallery: give both or neither.")
    return tuple(column for column in _COLUMNS if column in names)
