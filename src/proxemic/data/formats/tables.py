"""Read tables in CSV and Parquet, by the same rules for all commands."""

import csv
import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from proxemic.data.rows import Places, Rows
from proxemic.extras import optional_dependency
from proxemic.files import reading

with optional_dependency("train"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

Box = tuple[int, int, int, int]
SplitName = Literal["train", "validation", "test"]
SPLITS: dict[str, SplitName] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}

ROW_COLUMNS = ("path", "label", "split", "is_query", "is_gallery", "sequence", "category", "subclass")
CORNERS = ("x_1", "y_1", "x_2", "y_2")
IMAGE_COLUMNS = (*ROW_COLUMNS, *CORNERS)
EMBEDDING_COLUMNS = ("path", "label", "is_query", "is_gallery", "sequence", "category")

_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # the name that pandas gives its column of row numbers
_MOST_BYTES, _MOST_ROWS = 4 * 2**30, 2**26  # a table is read into memory
_AT_ONCE = 65_536  # rows of CSV that are held as objects

Choose = Callable[[Sequence[str]], Sequence[int]]


def read_table(table: Path, known: Sequence[str] | None = None, needed: Sequence[str] = ()) -> Rows:
    r"""Read columns of a .csv or .parquet table as texts.

    White space around names and values is removed. An empty cell, or "nan" in upper or lower case, has no value. Row
    numbers that pandas wrote, and columns of lists, are left out with a note. Only `known` columns are read, and
    `Rows.unused` names the others; None reads all columns. Messages name the line or row.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "birds.csv")
    >>> _ = path.write_text("path, label\na.jpg, owl\nb.jpg, nan\n")
    >>> read_table(path).labels
    ['owl', None]
    """
    if not table.is_file():  # reading a pipe would wait, and a device may never end
        raise ValueError(f"{table} is no regular file: give a .csv or .parquet table.")
    if (size := table.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"{table} has {size:,} bytes, but a table may have {_MOST_BYTES:,}: split it.")
    notes: list[str] = []
    unused: tuple[str, ...] = ()

    def choose(names: Sequence[str]) -> list[int]:
        nonlocal unused
        _check_names(table, names, names if known is None else known, needed)
        if index := [name for name in names if name in _INDEX]:
            called = f"the column {index[0]}" if index[0] else "a column without a name"
            notes.append(f"{table} has {called}, which is ignored.")
        others = [name for name in names if name not in _INDEX]
        unused = () if known is None else tuple(dict.fromkeys(name for name in others if name not in known))
        return [place for place, name in enumerate(names) if name in others and name not in unused]

    columns, places, lists = (_read_csv if table.suffix.lower() == ".csv" else _read_parquet)(table, choose)
    if lists:
        notes.append(f"{table} has columns of lists or bytes, which are ignored: {', '.join(lists)}.")
    return Rows(columns, notes=tuple(notes), unused=unused, places=places)


def boxes_of(rows: Rows) -> list[Box | None]:
    """Return the box of each row in whole pixels, rounded down as OML does; None for the whole image."""
    if not all(map(rows.has, CORNERS)):
        return [None] * len(rows)
    boxes: list[Box | None] = []
    for row, texts in enumerate(zip(*map(rows.texts, CORNERS), strict=True)):
        if texts == (None,) * 4:
            boxes.append(None)
            continue
        try:
            x_1, y_1, x_2, y_2 = (math.trunc(float(text or "nan")) for text in texts)
        except (ValueError, OverflowError):
            x_1 = y_1 = x_2 = y_2 = -1
        if not (0 <= x_1 < x_2 and 0 <= y_1 < y_2):
            values = ", ".join(f"{column} {text or 'empty'}" for column, text in zip(CORNERS, texts, strict=True))
            raise ValueError(
                f"{rows.place(row)}: its box has {values}, but must have four numbers with 0 <= x_1 < x_2 and "
                "0 <= y_1 < y_2, in whole pixels, or none."
            )
        boxes.append((x_1, y_1, x_2, y_2))
    return boxes


def unused_note(source: object, rows: Rows) -> tuple[str, ...]:
    """Return the notes of rows, and a note about unread columns."""
    unused = (f"{source} has columns that are not used: {', '.join(rows.unused)}.",) if rows.unused else ()
    return (*rows.notes, *unused)


def _read_csv(table: Path, choose: Choose) -> tuple[pa.Table, Places, list[str]]:
    line = 1  # the first line of the record being read
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column's name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            records = csv.reader(file, strict=True)
            header = [name.strip() for name in next((record for record in records if record), [])]
            chosen = choose(header)
            parts: list[list[pa.Array]] = [[] for _ in chosen]
            texts: list[list[str]] = [[] for _ in chosen]
            lines, line = array("q"), records.line_num + 1
            for record in records:
                if record:
                    if len(record) != len(header):
                        raise ValueError(f"{table}, line {line}: the number of fields is not that of the header.")
                    for place, held in zip(chosen, texts, strict=True):
                        if "\n" in record[place] and header[place] in ("path", "label"):
                            raise ValueError(
                                f"{table}, line {line}: {header[place]} has a line break: a quote is not closed."
                            )
                        held.append(record[place])
                    lines.append(line)
                    if len(lines) % _AT_ONCE == 0:
                        _flush(texts, parts)
                line = records.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{table}, line {line}: a quote is not closed ({error}): close it, and double the quotes within a quoted "
            "text."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is not a CSV table in UTF-8 ({error}).") from error
    except OSError as error:
        raise ValueError(f"{table} cannot be read ({error.strerror}).") from error
    _flush(texts, parts)
    columns = {header[place]: pa.chunked_array(part) for place, part in zip(chosen, parts, strict=True)}
    return pa.table(columns), Places(table, "line", np.array(lines, np.int64)), []


def _flush(texts: list[list[str]], parts: list[list[pa.Array]]) -> None:
    for held, part in zip(texts, parts, strict=True):
        part.append(_clean(pa.array(held, pa.string())))
        held.clear()


def _read_parquet(table: Path, choose: Choose) -> tuple[pa.Table, Places, list[str]]:
    types = pa.types
    with reading(table, "Parquet"):
        schema = pyarrow.parquet.read_schema(table)
        # As a dictionary column, repeated texts are in memory only once.
        texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
        with pyarrow.parquet.ParquetFile(table, read_dictionary=texts) as file:
            rows = file.metadata.num_rows
            if rows > _MOST_ROWS:  # compressed, they may take few bytes
                raise ValueError(f"{table} has {rows:,} rows, but may have {_MOST_ROWS:,}: split it.")
            chosen = [schema.names[place] for place in choose([name.strip() for name in schema.names])]
            tests = (types.is_nested, types.is_binary, types.is_large_binary)
            lists = [name for name in chosen if any(test(schema.field(name).type) for test in tests)]
            if wrong := next((name for name in lists if name.strip() in IMAGE_COLUMNS), None):
                raise ValueError(
                    f"{table}: {wrong} holds {schema.field(wrong).type}, but must hold texts, numbers or truth values."
                )
            content = file.read(columns=[name for name in chosen if name not in lists])
        content.validate(full=True)  # as indices beyond a damaged dictionary end the process
        columns = {name.strip(): _as_texts(content[name], table) for name in content.column_names}
    lists = [name for name in lists if name != "embedding"]
    return pa.table(columns), Places(table, "row", np.arange(1, rows + 1)), lists


def _as_texts(column: pa.ChunkedArray, table: Path) -> pa.ChunkedArray:
    compute: Any = pc
    parts, size = [], 0
    for chunk in (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).chunks:
        # Labels of any type are compared as text, so each different value is converted by Python.
        known = [None if value is None else str(value) for value in chunk.dictionary.to_pylist()]
        different = _clean(pa.array(known, pa.string()))
        size += compute.sum(compute.binary_length(different).take(chunk.indices)).as_py() or 0
        if size > _MOST_BYTES:
            raise ValueError(f"{table} has {size:,} bytes of text in a column, but may have {_MOST_BYTES:,}: split it.")
        parts.append(different.take(chunk.indices))
    return pa.chunked_array(parts, pa.string())


def _clean(texts: Any) -> Any:
    compute: Any = pc
    stripped = compute.utf8_trim_whitespace(texts)
    is_empty = compute.is_in(compute.utf8_lower(stripped), value_set=pa.array(["", "nan"]))
    return compute.if_else(is_empty, pa.scalar(None, pa.string()), stripped)


def _check_names(table: Path, names: Sequence[str], wanted: Sequence[str], needed: Sequence[str]) -> None:
    if missing := [column for column in needed if column not in names]:
        vectors = " For its vectors take the recipe own-vectors." if "embedding" in names and "path" in missing else ""
        raise ValueError(
            f"{table} has no column {' and '.join(missing)}: its columns are {', '.join(names) or 'none'}, "
            f"and {' and '.join(needed)} {'are' if len(needed) > 1 else 'is'} needed.{vectors}"
        )
    if ("is_query" in names) != ("is_gallery" in names):
        raise ValueError(f"{table} has only one of the columns is_query and is_gallery: give both or neither.")
    corners = [column for column in CORNERS if column in names]
    if "x_1" in wanted and 0 < len(corners) < 4:
        raise ValueError(f"{table} has of a box only {', '.join(corners)}: give x_1, y_1, x_2 and y_2, or none.")
    if twice := [column for column in wanted if column not in _INDEX and list(names).count(column) > 1]:
        raise ValueError(f"{table} has more than one column {twice[0]}: keep one.")
