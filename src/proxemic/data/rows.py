"""Rows of images, vectors or embeddings, and the columns that describe them.

`Rows` holds a content (pixels, vectors or embeddings) and an Arrow table of texts. It carries them from a folder, a
table or a file of vectors to training, galleries and files. `proxemic.data.ImageSet` numbers their classes.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64, Shaped

from proxemic.arrow import as_numbers, as_texts
from proxemic.extras import optional_dependency
from proxemic.files import readable
from proxemic.lazy import Tensor, is_tensor, torch
from proxemic.spelling import canonical

with optional_dependency("train"):
    import pyarrow as pa

NAMES = ("path", "first", "second")
"""Columns that name files or rows: their spelling matters."""

_VALUES = ("split", "is_query", "is_gallery", "same", "fold", "x_1", "y_1", "x_2", "y_2")
_TRUTHS = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}


def first_few(names: Sequence[str], count: int = 3) -> str:
    """Return the first names, as examples in a message."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def check_distinct(paths: Iterable[str], source: object) -> None:
    """Raise `ValueError` if two rows of a source have the same path, since the item would find itself."""
    first: dict[str, int] = {}
    for row, path in enumerate(paths, start=1):
        earlier = first.setdefault(os.path.normpath(path), row)
        if path and earlier != row:
            raise ValueError(
                f"rows {earlier:,} and {row:,} of {source} have the path {path}, which would find itself: keep one row "
                "per path, with is_query and is_gallery both true if it is both."
            )


class Places(NamedTuple):
    """Positions of rows in a file, from 0, for messages; `find_line` reads the line of a row in a text file."""

    file: Path
    numbers: Int64[np.ndarray, " rows"]
    find_line: Callable[[Path, int], int] | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of images, vectors or embeddings with columns of texts.

    Args:
        columns: One text, or null, per row. `path` is the name of a row, `label` its class; docs/own-tables.md
            describes further columns of tables of images. Any other columns are kept, too.
        pixels: `Pixels`, or `Vectors` instead of images; None if there are none.
        embeddings: The embedding of each row, a tensor or array ``[rows, dim]``; None before rows are embedded.
        notes: Facts that the user must know, one sentence each.
        unreadable: Reasons why further rows were left out, by name.
        ignored: Files that are not images by their names.
        unused: Columns of the table that were not read.
        folders: Folders and URLs that were listed.
        made_by: Checksum of the model that computed the vectors, if known.
        precision: Precision in which that model computed, if known.
        places: Positions of the rows in their table, for messages.

    Raises:
        ValueError: If the content and the columns differ in length.

    >>> rows = Rows.of(path=["a.jpg", "b.jpg"], label=["owl", None])
    >>> len(rows), rows.labels, rows.take([1]).names
    (2, ['owl', None], ['b.jpg'])
    """

    columns: pa.Table
    pixels: Any = None
    embeddings: Float[Any, "rows dim"] | None = None
    notes: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[Path, ...] = ()
    unused: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    made_by: str | None = None
    precision: str | None = None
    places: Places | None = None

    def __post_init__(self) -> None:
        counts = {len(part) for part in (self.pixels, self.embeddings) if part is not None}
        counts |= {self.columns.num_rows} if self.columns.num_columns else set()
        if len(counts) > 1:
            raise ValueError(f"the parts of rows have {sorted(counts)} entries, but need one per row each.")

    @classmethod
    def of(cls, content: Any = None, /, **columns: Sequence[str | None]) -> "Rows":
        """Make rows from pixels, vectors or a tensor of embeddings, and lists of texts."""
        table = pa.table({name: _as_array(texts) for name, texts in columns.items()})
        return cls(table, embeddings=content) if is_tensor(content) else cls(table, content)

    @classmethod
    def join(cls, parts: Sequence["Rows"], pixels: Any = None) -> "Rows":
        """Concatenate rows with their embeddings; a column that a part lacks is null there."""
        embeddings = [part.embeddings for part in parts if part.embeddings is not None]
        return Rows(
            pa.concat_tables([part.columns for part in parts], promote_options="default"),
            pixels,
            _joined(embeddings) if embeddings else None,
            tuple(note for part in parts for note in part.notes),
            {name: why for part in parts for name, why in part.unreadable.items()},
            tuple(path for part in parts for path in part.ignored),
            folders=tuple(folder for part in parts for folder in part.folders),
        )

    def __len__(self) -> int:
        return next((len(part) for part in (self.pixels, self.embeddings) if part is not None), self.columns.num_rows)

    @property
    def names(self) -> list[str]:
        """The name of each row; "" if it has none."""
        return [text or "" for text in self.texts("path")]

    @property
    def labels(self) -> list[str | None]:
        """The class of each row, or None."""
        return self.texts("label")

    def has(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self.columns.column_names

    def texts(self, name: str) -> list[str | None]:
        """Return a column; None for all rows if there is no such column."""
        return self.columns[name].to_pylist() if self.has(name) else [None] * len(self)

    def numbers(self, name: str) -> tuple[Int64[Tensor, " rows"], tuple[str, ...]]:
        """Replace each text of a column by its index in sorted order, null by -1; return indices and distinct texts.

        >>> Rows.of(label=["owl", None, "jay"]).numbers("label")
        (tensor([ 1, -1,  0]), ('jay', 'owl'))
        """
        if not self.has(name) or not len(self.columns):
            return torch.full((len(self),), -1), ()
        encoded = self.columns[name].dictionary_encode().unify_dictionaries()
        texts = encoded.chunk(0).dictionary.to_pylist()
        places = np.concatenate(
            [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
        ).astype(np.int64)
        order = sorted(np.unique(places[places >= 0]).tolist(), key=texts.__getitem__)
        rank = np.full(len(texts) + 1, -1)  # the last value means null
        rank[order] = np.arange(len(order))
        return torch.from_numpy(rank[places]), tuple(texts[place] for place in order)

    def meanings(self, name: str, meaning: Mapping[str, int], allowed: str) -> Int64[Tensor, " rows"]:
        """Map the texts of a column, in lower case, to numbers; null becomes -1.

        Raises:
            ValueError: If the mapping lacks a text; the message says what is allowed.
        """
        numbers, texts = self.numbers(name)
        known = torch.tensor([*(meaning.get(text.lower(), -2) for text in texts), -1])[numbers]
        if (known < -1).any():
            row = int((known < -1).int().argmax())
            raise ValueError(f"{self.place(row)}: {name} is {texts[numbers[row]]!r}, but it must be {allowed}.")
        return known

    def truths(self, name: str) -> Int64[Tensor, " rows"]:
        """Return the truth values of a column as 1 and 0, and -1 for null; `ValueError` for any other text."""
        return self.meanings(name, _TRUTHS, "true or false")

    def flags(self) -> tuple[Bool[Tensor, " rows"] | None, Bool[Tensor, " rows"] | None]:
        """Return which rows are queries and which are in the gallery; either all rows have both flags, or none."""
        flags = torch.stack([self.truths("is_query"), self.truths("is_gallery")])
        is_missing = (flags < 0).any(0)
        if (flags < 0).all():
            return None, None
        if is_missing.any():
            row = int(is_missing.int().argmax())
            raise ValueError(f"{self.place(row)}: is_query or is_gallery is empty, but other rows have both.")
        return flags[0].bool(), flags[1].bool()

    def require(self, name: str) -> None:
        """Raise `ValueError` if a row has no text in a column."""
        if self.columns[name].null_count:
            row = self.texts(name).index(None)
            raise ValueError(f"{self.place(row)}: {name} is empty, but every row needs one.")

    def place(self, row: int) -> str:
        """Name a row in a message, by its position in a table or else by its path."""
        if self.places is None:
            return self.names[row] or f"row {row + 1:,}"
        file, numbers, find_line = self.places
        number = int(numbers[row])
        return f"{file}, row {number + 1:,}" if find_line is None else f"{file}, line {find_line(file, number):,}"

    def take(self, order: Sequence[int] | Shaped[np.ndarray, " taken"] | Int64[Tensor, " taken"]) -> "Rows":
        """Return the rows at these indices, in that order."""
        chosen = np.asarray(order, np.int64)
        return replace(
            self,
            columns=self.columns.take(as_numbers(chosen)) if self.columns.num_columns else self.columns,
            pixels=None if self.pixels is None else self.pixels.select(chosen),
            embeddings=None if self.embeddings is None else self.embeddings[chosen],
            places=self.places and self.places._replace(numbers=self.places.numbers[chosen]),
        )

    def without(self, *names: str) -> "Rows":
        """Drop the given columns, if they exist."""
        return replace(self, columns=self.columns.drop_columns([*filter(self.has, names)]))

    def with_texts(self, **columns: Sequence[str | None]) -> "Rows":
        """Add columns, or replace those of the same name."""
        kept = dict(zip(self.columns.column_names, self.columns.columns, strict=True))
        return replace(self, columns=pa.table(kept | {name: _as_array(texts) for name, texts in columns.items()}))


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([*parts]) if is_tensor(parts[0]) else np.concatenate(parts)


def truth_texts(flags: Bool[Tensor, " rows"]) -> list[str]:
    """Return truth values as the texts of a column."""
    return [str(flag).lower() for flag in flags.tolist()]


def join_spellings(rows: Rows, source: object) -> Rows:
    r"""Give texts that look the same one spelling, in all columns but names of files, and add a note on joined ones.

    >>> joined = join_spellings(Rows.of(label=["Caf\u00e9", "Cafe\u0301", "7", "7.0"]), "t.csv")
    >>> len({*joined.labels}), joined.notes[0]
    (2, "t.csv: label has texts that look the same, each taken as one: Café (also 'Cafe\\u0301'), 7 (also '7.0').")
    """
    columns, notes = dict(zip(rows.columns.column_names, rows.columns.columns, strict=True)), [*rows.notes]
    for name, column in columns.items():
        if name in NAMES or not len(column):
            continue
        is_encoded = pa.types.is_dictionary(column.type)
        encoded = (column if is_encoded else column.dictionary_encode()).unify_dictionaries()
        texts = encoded.chunk(0).dictionary.to_pylist()
        spelt = [text and canonical(text) for text in texts]
        if spelt == texts:
            continue
        forms: dict[str, list[str]] = {}
        for text, form in zip(texts, spelt, strict=True):
            forms.setdefault(form or "", []).append(text)
        joined = [
            f"{form} (also {', '.join(ascii(text) for text in found if text != form)})"
            for form, found in forms.items()
            if len(found) > 1
        ]
        if joined and name not in _VALUES:
            notes.append(f"{source}: {name} has texts that look the same, each taken as one: {first_few(joined)}.")
        different = as_texts([form or None for form in spelt])
        columns[name] = pa.chunked_array([different.take(chunk.indices) for chunk in encoded.chunks], pa.string())
    return replace(rows, columns=pa.table(columns), notes=tuple(notes))


def _as_array(texts: Sequence[str | None]) -> pa.Array:
    try:
        return as_texts(texts)
    except UnicodeEncodeError:  # names of files that are not UTF-8
        return as_texts([text and readable(text) for text in texts])
