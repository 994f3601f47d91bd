"""Columns of large tables: each as numbers and the different texts, without an object per row."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from proxemic.data.rows import RowGroups
from proxemic.data.tables import Reader, check_size, known_columns, open_table
from proxemic.extras import optional_dependency

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("path", "label", "split", "is_query", "is_gallery", "sequence", "category", "subclass")
FLAGS = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}
"""What the texts of a column of truth values mean, in small letters."""


@dataclass(frozen=True, eq=False)
class Column:
    """The text of each row, as its place among the different texts, which are sorted; -1 is none."""

    numbers: Int64[np.ndarray, " rows"]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, values: "pyarrow.ChunkedArray") -> "Column":
        """Take the values of a column of any plain type as text."""
        import pyarrow

        if not pyarrow.types.is_dictionary(values.type):
            values = values.dictionary_encode()
        values = values.unify_dictionaries()
        if not values.num_chunks or not len(values):
            return cls(np.empty(0, np.int64), ())
        different = ["" if value is None else str(value).strip() for value in values.chunk(0).dictionary.to_pylist()]
        numbers = np.concatenate(
            [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in values.chunks]
        )
        return cls.of_texts(different, numbers)

    @classmethod
    def of_texts(cls, different: Sequence[str], numbers: Int[np.ndarray, " rows"]) -> "Column":
        """Take the text of each row as its place among some texts, or -1."""
        texts = sorted({text for text in different if text.lower() not in ("", "nan")})
        place = {text: number for number, text in enumerate(texts)}
        # The last stands for rows of no value, whose number is -1.
        places = np.array([*(place.get(text, -1) for text in different), -1], np.int64)
        return cls(places[numbers], tuple(texts))

    @classmethod
    def of_array(cls, values: np.ndarray) -> "Column":
        """Take the values of an array as text."""
        different, numbers = np.unique(values, return_inverse=True)
        texts = [str(value) for value in different.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        return cls(np.argsort(order)[numbers], tuple(texts[place] for place in order))

    def groups(self) -> RowGroups | None:
        """The texts as names of groups; None where no row has one."""
        return RowGroups(torch.from_numpy(self.numbers), self.texts) if self.texts else None

    def all_numbers(self, name: str, table: Path) -> Int64[Tensor, " rows"]:
        """The numbers; `ValueError` where a row has none."""
        if len(self.numbers) and self.numbers.min() < 0:
            raise ValueError(
                f"{table}, row {int(self.numbers.argmin()) + 1:,}: {name} is empty, but every row needs one."
            )
        return torch.from_numpy(self.numbers)

    def meanings(self, name: str, meaning: Mapping[str, int], allowed: str, table: Path) -> Int64[Tensor, " rows"]:
        """What the texts, in small letters, mean; -1 for none, and `ValueError` where a text means nothing."""
        places = np.array([*(meaning.get(text.lower(), -2) for text in self.texts), -1], np.int64)
        numbers = places[self.numbers]
        if len(numbers) and numbers.min() < -1:
            row = int(numbers.argmin())
            text = self.texts[self.numbers[row]]
            raise ValueError(f"{table}, row {row + 1:,}: {name} is {text!r}, but it must be {allowed}.")
        return torch.from_numpy(numbers)

    def strings(self) -> np.ndarray:
        """The texts themselves, in an array that holds many of them in little memory."""
        return np.array([*self.texts, ""], np.dtypes.StringDType())[self.numbers]


def read_columns(
    table: Path, needed: Sequence[str] = (), known: Sequence[str] = COLUMNS
) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Read those of the `known` columns that a .csv or .parquet file has; give the names of its other columns, too.

    A `ValueError` says what is wrong with the file.
    """
    check_size(table)
    if table.suffix.lower() == ".csv":
        with open_table(table) as (names, read):
            wanted = known_columns(table, names, known, needed)
            columns = _number_texts(wanted, read)
    else:
        with optional_dependency("train"):
            import pyarrow
            import pyarrow.parquet
        try:
            with pyarrow.parquet.ParquetFile(table) as file:
                names = file.schema_arrow.names
                wanted = known_columns(table, names, known, needed)
                content = file.read(columns=list(wanted))
        except (pyarrow.ArrowException, OSError) as error:
            why = " ".join(str(error).split())
            raise ValueError(f"{table} is no Parquet table that can be read ({why}).") from error
        columns = {name: Column.of(content.column(name)) for name in wanted}
    return columns, tuple(dict.fromkeys(name for name in names if name not in known))


def _number_texts(wanted: Sequence[str], read: Reader) -> dict[str, Column]:
    places: dict[str, dict[str, int]] = {name: {} for name in wanted}
    numbers = {name: array("q") for name in wanted}
    for _, record in read(wanted):
        for name, text in record.items():
            numbers[name].append(places[name].setdefault(text, len(places[name])))
    return {name: Column.of_texts([*places[name]], np.array(numbers[name], np.int64)) for name in wanted}
