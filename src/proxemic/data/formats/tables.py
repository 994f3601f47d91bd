"""Read tables in CSV and Parquet, by the same rules for all commands."""

import codecs
import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from proxemic.data.rows import Places, Rows, first_few, join_spellings
from proxemic.extras import optional_dependency
from proxemic.files import reading
from proxemic.spelling import without_invisible

with optional_dependency("train"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.parquet

Box = tuple[int, int, int, int]
SplitName = Literal["train", "validation", "test"]
SPLITS: dict[str, SplitName] = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}

ROW_COLUMNS = ("path", "label", "split", "is_query", "is_gallery", "sequence", "category", "subclass")
CORNERS = ("x_1", "y_1", "x_2", "y_2")
IMAGE_COLUMNS = (*ROW_COLUMNS, *CORNERS)
EMBEDDING_COLUMNS = ("path", "label", "is_query", "is_gallery", "sequence", "category")

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
"""Endings of tables."""

_SPREADSHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers")
_SAVE_AS = "save it as CSV in UTF-8 (in Excel: File, Save As, CSV UTF-8)"
_DELIMITERS = ",;\t"
_SNIFFED = 2**16  # bytes
_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # the name that pandas gives its column of row numbers
_MOST_BYTES, _MOST_ROWS = 4 * 2**30, 2**26  # a table is read into memory
_LONGEST_ROW = 2**25  # bytes of a row of CSV
_END = "\x1e"
_MOST_NAMED = 20  # columns that a message names

Choose = Callable[[Sequence[str]], Sequence[int]]


def is_table(file: object) -> bool:
    """Return whether a name has the ending of a table; raise `ValueError` for the file of a spreadsheet program."""
    name = str(file).lower()
    if name.endswith(_SPREADSHEETS):
        raise ValueError(f"{file} is the file of a spreadsheet program, which is not read here: {_SAVE_AS}.")
    return name.endswith(TABLES)


def read_table(table: Path, known: Sequence[str] | None = None, needed: Sequence[str] = ()) -> Rows:
    r"""Read columns of a CSV or Parquet table as texts.

    CSV may be compressed by gzip (``.csv.gz``). It is in UTF-8 or, with a byte order mark, UTF-16; its columns are
    separated by commas, semicolons or tabs. White space around names and values is removed. Names of known columns may
    have capitals. An empty cell, or "nan" in upper or lower case, has no value. Texts that look the same are joined by
    `join_spellings`. Row numbers that pandas wrote, and columns of lists, are left out with a note. Only `known`
    columns are read, and `Rows.unused` names the others; None reads all columns. Messages name the line or row.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "birds.csv")
    >>> _ = path.write_text("Path; Label\na.jpg; owl\nb.jpg; nan\n")
    >>> read_table(path).labels
    ['owl', None]
    """
    if not is_table(table):
        raise ValueError(f"{table} ends in {table.suffix or 'nothing'}, but tables end in {', '.join(TABLES)}.")
    if not table.is_file():  # reading a pipe would wait, and a device may never end
        raise ValueError(f"{table} is not a regular file: give a table.")
    if (size := table.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"{table} has {size:,} bytes, but a table may have {_MOST_BYTES:,}: split it.")
    notes: list[str] = []
    names: list[str] = []
    unused: tuple[str, ...] = ()

    def choose(given: Sequence[str]) -> list[int]:
        nonlocal unused
        names.extend(_as_known(given, {*(known or (*IMAGE_COLUMNS, "embedding")), *needed}))
        _check_names(table, names, names if known is None else known, needed)
        if index := [name for name in names if name in _INDEX]:
            called = f"the column {index[0]}" if index[0] else "a column without a name"
            notes.append(f"{table} has {called}, which is ignored.")
        read = {*names} if known is None else {*known}
        unused = tuple(dict.fromkeys(name for name in names if name not in read and name not in _INDEX))
        return [place for place, name in enumerate(names) if name in read and name not in _INDEX]

    reader = _read_parquet if table.suffix.lower() == ".parquet" else _read_csv
    content, places, lists = reader(table, choose)
    columns = {names[place]: _clean(column, table) for place, column in content.items()}
    if ignored := [names[place] for place in lists if names[place] != "embedding"]:
        notes.append(f"{table} has columns of lists or bytes, which are ignored: {', '.join(ignored)}.")
    return join_spellings(Rows(pa.table(columns), notes=tuple(notes), unused=unused, places=places), table)


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
    names = first_few(rows.unused, _MOST_NAMED)
    return (*rows.notes, *((f"{source} has columns that are not used: {names}.",) if names else ()))


def _as_known(given: Sequence[str], known: set[str]) -> list[str]:
    """Give known columns their usual spelling, unless another column has exactly that name."""
    names = [without_invisible(name) for name in given]
    wanted = known.difference(names)
    return [name.lower() if name.lower() in wanted else name for name in names]


def _check_size(table: Path, rows: int, size: int) -> None:
    """Raise `ValueError` if a table is too large; compressed, it may have few bytes."""
    if rows > _MOST_ROWS:
        raise ValueError(f"{table} has {rows:,} rows, but may have {_MOST_ROWS:,}: split it.")
    if size > _MOST_BYTES:
        raise ValueError(f"{table} has {size:,} bytes of text, but may have {_MOST_BYTES:,}: split it.")


def _read_csv(table: Path, choose: Choose) -> tuple[dict[int, pa.ChunkedArray], Places, list[int]]:
    wrong: list[Any] = []

    def refuse(row: Any) -> str:
        wrong.append(row)
        return "error"

    with _csv_errors(table):
        encoding, delimiter, header = _read_header(table)
    chosen = choose(header)
    if not header:
        return {}, Places(table, np.arange(0), _find_line), []
    names = [*map(str, range(len(header)))]  # the table's own names may come twice
    included = [names[place] for place in chosen] or names[:1]
    kind = pa.dictionary(pa.int32(), pa.string())  # repeated texts are in memory only once
    batches, rows, size = [], 0, 0
    end = ["\n", *("" for _ in header[1:])]
    end[int(included[0])] += _END
    with _csv_errors(table, wrong), _open(table) as file:
        reader = pyarrow.csv.open_csv(
            _Ended(file, (delimiter.join(end) + "\n").encode(encoding)),
            pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=_LONGEST_ROW, encoding=encoding),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
            pyarrow.csv.ConvertOptions(include_columns=included, column_types=dict.fromkeys(included, kind)),
        )
        for batch in reader:
            if len(batch):
                batches.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            _check_size(table, rows, size)
        if batches[-1].column(0)[-1].as_py() != _END:
            raise csv.Error
    content = pa.Table.from_batches(batches).slice(1, rows - 2)  # without the header and the end
    columns = dict(zip(chosen, content.columns, strict=False))  # without any, one was read to count the rows
    for place, column in columns.items():
        if header[place].strip().lower() in ("path", "label"):
            _check_line_breaks(table, header[place], column)
    return columns, Places(table, np.arange(len(content)), _find_line), []


@contextmanager
def _csv_errors(table: Path, wrong: Sequence[Any] = ()) -> Iterator[None]:
    """Turn errors of a block that reads CSV into a `ValueError`; `wrong` has the rows that pyarrow refuses."""
    try:
        yield
    except (pa.ArrowInvalid, csv.Error) as error:
        if wrong:
            line = _find_line(table, wrong[0].number - 2)  # pyarrow counts the header, from 1
            counts = f"{wrong[0].expected_columns} columns, but this row has {wrong[0].actual_columns}"
            why = "a quote is not closed" if "\n" in wrong[0].text else f"the header has {counts}"
        elif "UTF8" in str(error):
            raise ValueError(f"{table} is a table in neither UTF-8 nor UTF-16: {_SAVE_AS}.") from error
        else:  # the rest of the table is one text
            line, why = _find_line(table), f"a quote is not closed, or the row has more than {_LONGEST_ROW:,} bytes"
        raise ValueError(f"{table}, line {line:,}: {why}.") from error
    except UnicodeError as error:
        raise ValueError(f"{table} is a table in neither UTF-8 nor UTF-16: {_SAVE_AS}.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{table} cannot be read ({getattr(error, 'strerror', None) or error}).") from error


class _Ended:
    """A file with another row at its end, which pyarrow reads as such only if no quote is open before it."""

    closed = False

    def __init__(self, file: Any, end: bytes) -> None:
        self._file, self._end = file, io.BytesIO(end)

    def read(self, size: int = -1) -> bytes:
        """Read at most that many bytes."""
        return self._file.read(size) or self._end.read(size)


def _open(table: Path) -> Any:
    return gzip.open(table) if table.suffix.lower() == ".gz" else table.open("rb")


def _read_header(table: Path) -> tuple[str, str, list[str]]:
    """Return the encoding of CSV, its delimiter, and the names of its columns."""
    with _open(table) as file:
        start = file.read(_SNIFFED)
        wide = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
        encoding = wide.get(start[:2], "utf-8")
        sample = codecs.getincrementaldecoder(encoding)().decode(start)
        file.seek(0)
        lines = io.TextIOWrapper(file, encoding, newline="")
        # Spreadsheets put a byte order mark before the first column's name.
        first = next((line for line in (line.lstrip("\ufeff") for line in lines) if line.strip("\r\n")), "")
        delimiters = [sign for sign in _DELIMITERS if sign in first]
        delimiter = delimiters[0] if delimiters else _DELIMITERS[0]
        if len(delimiters) > 1:
            with suppress(csv.Error):
                delimiter = csv.Sniffer().sniff(sample, "".join(delimiters)).delimiter
        try:
            header = next(csv.reader(chain([first], lines), delimiter=delimiter), [])
        except csv.Error as error:
            raise ValueError(f"{table}, line 1: a quote is not closed.") from error
    return encoding, delimiter, header


def _find_line(table: Path, row: int | None = None) -> int:
    """Return the line in which a row of CSV begins; without a row, that of the first too long one, or else the last."""
    encoding, delimiter, _ = _read_header(table)
    line = first = 1
    with _open(table) as file, suppress(csv.Error):
        records = csv.reader(io.TextIOWrapper(file, encoding, "replace", newline=""), delimiter=delimiter)
        left = -1 if row is None else row + 2  # with the header
        for record in records:
            if record:
                line, left = first, left - 1
                if left == 0:
                    return line
            first = records.line_num + 1
        return line
    return first


def _check_line_breaks(table: Path, name: str, column: pa.ChunkedArray) -> None:
    compute: Any = pc
    if any(compute.any(compute.match_substring(chunk.dictionary, "\n")).as_py() for chunk in column.chunks):
        row = compute.index(compute.match_substring(column.cast(pa.string()), "\n"), True).as_py()
        if row >= 0:
            line = _find_line(table, row)
            raise ValueError(f"{table}, line {line:,}: {name.strip()} has a line break: a quote is not closed.")


def _read_parquet(table: Path, choose: Choose) -> tuple[dict[int, pa.ChunkedArray], Places, list[int]]:
    types = pa.types
    with reading(table, "Parquet"):
        schema = pyarrow.parquet.read_schema(table)
        # As a dictionary column, repeated texts are in memory only once.
        texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
        with pyarrow.parquet.ParquetFile(table, read_dictionary=texts) as file:
            rows = file.metadata.num_rows
            _check_size(table, rows, 0)
            names, kinds = schema.names, schema.types
            tests = (types.is_nested, types.is_binary, types.is_large_binary)
            columns, lists = list[int](), list[int]()
            for place in choose(names):
                (lists if any(test(kinds[place]) for test in tests) else columns).append(place)
            for place in lists:
                if (name := names[place].strip()).lower() in IMAGE_COLUMNS:
                    raise ValueError(
                        f"{table}: {name} holds {kinds[place]}, but must hold texts, numbers or truth values."
                    )
            content = file.read(columns=[names[place] for place in columns])
        content.validate(full=True)  # as indices beyond a damaged dictionary end the process
    return dict(zip(columns, content.columns, strict=True)), Places(table, np.arange(rows)), lists


def _clean(column: pa.ChunkedArray, table: Path) -> pa.ChunkedArray:
    """Convert a column to texts without white space around them; "" and "nan" become null."""
    compute: Any = pc
    parts, size = [], 0
    for chunk in (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).chunks:
        known = chunk.dictionary
        if not pa.types.is_string(known.type):  # each different value is converted by Python
            known = pa.array([value if value is None else _as_text(value) for value in known.to_pylist()], pa.string())
        stripped = compute.utf8_trim_whitespace(known)
        is_empty = compute.is_in(compute.utf8_lower(stripped), value_set=pa.array(["", "nan"]))
        different = compute.if_else(is_empty, pa.scalar(None, pa.string()), stripped)
        size += compute.sum(compute.binary_length(different).take(chunk.indices)).as_py() or 0
        _check_size(table, len(column), size)
        parts.append(different.take(chunk.indices))
    return pa.chunked_array(parts, pa.string())


def _as_text(value: object) -> str:
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def _check_names(table: Path, names: Sequence[str], wanted: Sequence[str], needed: Sequence[str]) -> None:
    if missing := [column for column in needed if column not in names]:
        vectors = " For its vectors, use the recipe own-vectors." if "embedding" in names and "path" in missing else ""
        has = f"its columns are {first_few(names, _MOST_NAMED) or 'none'}"
        verb = "are" if len(needed) > 1 else "is"
        raise ValueError(
            f"{table} has no column {' and '.join(missing)}: {has}, and {' and '.join(needed)} {verb} needed.{vectors}"
        )
    if ("is_query" in names) != ("is_gallery" in names):
        raise ValueError(f"{table} has only one of the columns is_query and is_gallery: give both or neither.")
    corners = [column for column in CORNERS if column in names]
    if "x_1" in wanted and 0 < len(corners) < 4:
        raise ValueError(f"{table} has only {', '.join(corners)} of a box: give x_1, y_1, x_2 and y_2, or none.")
    counts = Counter(names)
    if twice := [column for column in wanted if column not in _INDEX and counts[column] > 1]:
        raise ValueError(f"{table} has more than one column {twice[0]}: keep one.")
