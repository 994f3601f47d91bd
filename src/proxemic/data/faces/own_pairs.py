"""Pairs that a table of the user's own names: of image files, or of the rows of a file of vectors."""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.data.faces.pairs import FacePairs
from proxemic.data.pixels import FilePixels, Pixels
from proxemic.data.rows import FLAGS, Rows
from proxemic.data.sources.listing import first_few
from proxemic.data.tables import read_table, unused_note
from proxemic.data.vectors import Vectors
from proxemic.files import backslash_hint, readable

_NEEDED, _COLUMNS = ("first", "second", "same"), ("first", "second", "same", "fold")
_FOLDS = 10
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_own_pairs(table: str | Path, source: Path | Vectors) -> tuple[FacePairs, tuple[str, ...]]:
    r"""Read pairs from a .csv or .parquet table with the columns `first`, `second`, `same` and perhaps `fold`.

    Where there is no column `fold`, the same pairs and the different ones are each dealt to ten folds in turn.

    Args:
        table: The table. `first` and `second` name what is compared, `same` is true or false (or 1 or 0), `fold` a
            whole number.
        source: The folder that the paths of images are relative to; or vectors, which go by their names or, where they
            have none, by their numbers, from 0.

    Returns:
        The pairs, and notes for the user.

    Raises:
        ValueError: If the table cannot be read, lacks a column or a value, names what is not there, or has a fold
            without pairs of both kinds.

    >>> import tempfile
    >>> from proxemic.data.vectors import VectorArray
    >>> table = Path(tempfile.mkdtemp(), "pairs.csv")
    >>> _ = table.write_text("first,second,same,fold\n2,0,true,0\n2,3,false,0\n0,2,true,1\n3,0,false,1\n")
    >>> pairs, _ = read_own_pairs(table, Vectors(VectorArray(torch.eye(4))))
    >>> len(pairs.pixels), pairs.first.tolist(), pairs.second.tolist()
    (3, [1, 1, 0, 2], [0, 2, 1, 0])
    """
    table = Path(table)
    if table.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{table} ends in {table.suffix or 'nothing'}, but pairs are read from .csv and .parquet.")
    rows = read_table(table, _COLUMNS, _NEEDED)
    if not len(rows):
        raise ValueError(f"{table} has no pairs: give one per row.")
    for name in _NEEDED:
        rows.require(name)
    same = rows.meanings("same", FLAGS, "true or false").bool()
    first, second = ([text for text in rows.texts(name) if text] for name in ("first", "second"))
    names = sorted({*first, *second})
    place = {name: number for number, name in enumerate(names)}
    pixels = _files(names, source, table) if isinstance(source, Path) else _rows(names, source, table)
    left, right = (torch.tensor([place[name] for name in column]) for column in (first, second))
    return FacePairs(pixels, left, right, same, _folds(same, rows, table)), unused_note(table, rows)


def _folds(same: Bool[Tensor, " pairs"], rows: Rows, table: Path) -> Int64[Tensor, " pairs"]:
    """Return the fold of each pair, from the column or dealt; each fold has pairs of both kinds."""
    counts = int(same.sum()), int((~same).sum())
    has = f"{table} has {counts[0]:,} same pairs and {counts[1]:,} different ones"
    if not all(counts):
        raise ValueError(f"{has}, but verification needs both kinds: add the other.")
    if not rows.has("fold"):
        if min(counts) < _FOLDS:
            raise ValueError(f"{has}, too few for {_FOLDS} folds: add some, or give fewer folds in a column fold.")
        folds = torch.empty(len(same), dtype=torch.int64)
        folds[same], folds[~same] = (torch.arange(count) % _FOLDS for count in counts)
        return folds
    rows.require("fold")
    numbers = {text: int(text) for text in rows.numbers("fold")[1] if _NUMBER.fullmatch(text)}
    folds = rows.meanings("fold", numbers, "a whole number")
    different = folds.unique().tolist()
    if len(different) < 2:
        raise ValueError(f"{table} has all pairs in fold {different[0]}, but there must be two folds or more.")
    for fold in different:
        kinds = same[folds == fold]
        if kinds.all() or not kinds.any():
            lacking = "different" if kinds.all() else "same"
            raise ValueError(f"{table}: fold {fold} has no {lacking} pair, but each needs both kinds: deal them anew.")
    return folds


def _files(names: Sequence[str], folder: Path, table: Path) -> Pixels:
    _check_known([name for name in names if not (folder / name).is_file()], names, table, str(folder))
    return FilePixels([folder / name for name in names])


def _rows(names: Sequence[str], vectors: Vectors, table: Path) -> Vectors:
    known = vectors.names
    if known is None:
        rows = {name: int(name) for name in names if _NUMBER.fullmatch(name) and int(name) < len(vectors)}
        what = f"{vectors.reader.name}, whose rows are numbered from 0 to {len(vectors) - 1:,},"
    else:
        wanted, rows = {*names}, {}
        for row, name in enumerate(known):
            if name in wanted and rows.setdefault(name, row) != row:
                raise ValueError(f"{table} names {readable(name)}, but {vectors.reader.name} has several of that name.")
        what = f"{vectors.reader.name}, whose rows are named by the column path,"
    _check_known([name for name in names if name not in rows], names, table, what)
    return vectors.select([rows[name] for name in names])


def _check_known(missing: Sequence[str], names: Sequence[str], table: Path, what: str) -> None:
    if missing:
        examples = first_few([readable(name) for name in missing])
        hint = next(filter(None, map(backslash_hint, missing)), "")
        raise ValueError(f"{what} lacks {len(missing):,} of the {len(names):,} that {table} names: {examples}{hint}.")
