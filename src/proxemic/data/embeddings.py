"""Files of embeddings, written here or elsewhere, with the metadata of their rows."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from proxemic.data.formats.tables import EMBEDDING_COLUMNS, read_table
from proxemic.data.formats.vectors import (
    check_embedding_name,
    open_vectors,
    read_description,
    read_metadata,
    write_npy,
    write_parquet,
)
from proxemic.data.remote import write_to
from proxemic.data.rows import Rows, truth_texts
from proxemic.data.vectors import Vectors
from proxemic.extras import optional_dependency
from proxemic.spelling import without_invisible

with optional_dependency("train"):
    import pyarrow as pa


GROUP = 65_536
"""Rows of a row group of a Parquet file."""

MADE_BY = "made_by"
"""Metadata key of a file for the model that computed its embeddings."""

PRECISION = "precision"
"""Metadata key of a file for the precision in which that model computed."""


def write_embeddings(path: str | Path, rows: Rows) -> None:
    """Write embeddings as float32, in the format of the name's ending; each file is complete or not written.

    ``NAME.parquet`` holds the column ``embedding`` (lists) and those of the rows: ``path``, ``label``, ``sequence``,
    ``category``, ``is_query`` and ``is_gallery``; the metadata of its schema has ``made_by`` and ``precision``.
    ``NAME.npy`` holds the embeddings alone: the columns are in ``NAME.paths.csv`` and the metadata in ``NAME.json``
    next to it.

    Args:
        path: The file.
        rows: The embeddings to write. If known, ``made_by`` is the checksum or another name of the model that computed
            them, and ``precision`` the precision in which it computed.

    Raises:
        ValueError: If there are no embeddings, the name has another ending, or ``NAME.json`` exists with other content.
        UserError: If a file cannot be written.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "birds.parquet"
    >>> write_embeddings(path, Rows.of(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), label=["owl", "jay"]))
    >>> read_embeddings(path).labels
    ['owl', 'jay']
    """
    if rows.embeddings is None or not rows.embeddings.numel():
        raise ValueError("rows have no embeddings to write: embed them first.")
    embeddings = rows.embeddings.detach().float().cpu().numpy()
    chunks = (embeddings[first : first + GROUP] for first in range(0, len(embeddings), GROUP))
    shape = (embeddings.shape[0], embeddings.shape[1])
    write_embedding_chunks(Path(path), chunks, shape, rows)


def write_embedding_chunks(
    path: Path | str,
    chunks: Iterable[Float32[np.ndarray, "chunk dim"]],
    shape: tuple[int, int],
    rows: Rows,
    folder: Path = Path(),
) -> None:
    """Write embeddings as `write_embeddings` does, chunk by chunk, so that they need not all be in memory.

    With chunks of `GROUP` rows, the file has the same bytes as from `write_embeddings`. For a URL, the file is first
    written to the local ``folder``.
    """
    columns, (_, *others) = _columns(rows), files_of_embeddings(path)
    metadata = {MADE_BY: rows.made_by, PRECISION: rows.precision}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with write_to(path, folder) as temporary:
        if not others:
            write_parquet(temporary, chunks, shape, columns, metadata)
            return
        write_npy(temporary, chunks, shape)
        table, described = others
        if columns.num_columns:
            with write_to(table, folder) as part, part.open("w", newline="", encoding="utf-8") as file:
                texts = zip(*(column.to_pylist() for column in columns.columns), strict=True)
                csv.writer(file).writerows([columns.column_names, *texts])
        with write_to(described, folder) as part:
            part.write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _columns(rows: Rows) -> pa.Table:
    """Return the columns of a file of embeddings, without columns that are empty in every row."""
    texts = {"path": rows.names} if rows.has("path") else {}
    texts |= {name: rows.texts(name) for name in ("label", "sequence", "category") if rows.numbers(name)[1]}
    flags = zip(("is_query", "is_gallery"), rows.flags(), strict=True)
    return Rows.of(**texts, **{name: truth_texts(flag) for name, flag in flags if flag is not None}).columns


def files_of_embeddings(path: Path | str) -> list[Path | str]:
    """List the files that `write_embeddings` writes: the path itself, and for .npy its table and its metadata.

    Raises:
        ValueError: If the name has another ending, or a JSON file of another kind would be overwritten.
    """
    if check_embedding_name(Path(path)) == ".parquet":
        return [path]
    table, described = beside(path, "paths.csv"), beside(path, "json")
    content = read_description(described) if isinstance(described, Path) else {}
    if content is None or not content.keys() <= {MADE_BY, PRECISION}:
        raise ValueError(f"{described} would be overwritten by the metadata of {path}: choose another name.")
    return [path, table, described]


def beside(target: Path | str, ending: str) -> Path | str:
    """Return the path or URL of a file next to another one, with the same name but this ending."""
    if isinstance(target, Path):
        return target.with_name(f"{target.stem}.{ending}")
    return f"{target.rpartition('.')[0]}.{ending}"


def read_embeddings(path: str | Path, labels: str | Path | None = None) -> Rows:
    r"""Read embeddings that `write_embeddings` wrote, or that were made elsewhere.

    Floats may have any width. Values that are not finite are kept; the metrics reject them.

    Args:
        path: A .parquet or .npy file.
        labels: A table for `read_labels`, which takes precedence over the labels in `path`. Its rows are in the order
            of the embeddings; if both files have the column ``path``, rows are matched by their paths instead.

    Raises:
        ValueError: If a file is missing, damaged, a pickle or of another kind, or the two do not fit together.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> np.save(folder / "birds.npy", np.eye(2))
    >>> _ = (folder / "birds.csv").write_text("label\nowl\njay\n")
    >>> birds = read_embeddings(folder / "birds.npy", folder / "birds.csv")
    >>> birds.embeddings.dtype, birds.labels
    (torch.float32, ['owl', 'jay'])
    """
    rows = open_rows(Path(path), None if labels is None else Path(labels), EMBEDDING_COLUMNS, whole=True)
    return replace(rows, pixels=None, embeddings=rows.pixels.reader.array.float())


def open_rows(
    path: Path, labels: Path | None = None, known: Sequence[str] | None = None, *, whole: bool = False
) -> Rows:
    """Open a file of vectors with the metadata in the file and in a table of labels.

    Args:
        path: A .parquet or .npy file.
        labels: A table of labels, as for `read_embeddings`, whose columns take precedence.
        known: The columns to read; None reads all of Parquet.
        whole: Read all vectors now; otherwise only the vectors of a batch are read, when needed.

    Raises:
        ValueError: If a file cannot be read, or the two do not fit together.
    """
    reader = open_vectors(path, whole)
    rows = Rows.of() if path.suffix.lower() == ".npy" else read_table(path, known)
    rows = replace(rows, unused=tuple(name for name in rows.unused if name != "embedding"))
    if labels is not None:
        own, rows = rows, read_labels(labels, known)
        if own.has("path") and rows.has("path") and own.names != rows.names:
            rows = _match(path, own, labels, rows)
        if len(rows) != len(reader):
            raise ValueError(f"{labels} has {len(rows):,} rows, but {path} has {len(reader):,} vectors.")
        tables = (own.columns, rows.columns)
        rows = replace(rows, columns=pa.table({name: table[name] for table in tables for name in table.column_names}))
    metadata = read_metadata(path)
    names = np.array(rows.names, np.dtypes.StringDType()) if rows.has("path") else None
    vectors = Vectors(reader, names=names, made_by=metadata.get(MADE_BY))
    return replace(rows, pixels=vectors, made_by=vectors.made_by, precision=metadata.get(PRECISION))


def read_labels(path: str | Path, known: Sequence[str] | None = EMBEDDING_COLUMNS) -> Rows:
    r"""Read the labels of embeddings, in their order.

    Args:
        path: A table (CSV or Parquet) with the column ``label`` and perhaps ``path``, ``is_query``, ``is_gallery``,
            ``sequence`` and ``category``. Labels are compared as text.
        known: The columns to read; None reads all of Parquet.

    Raises:
        ValueError: If the file is missing or damaged, or lacks a label.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("label\n1099511627776\n7\n7\n")
    >>> read_labels(path).labels
    ['1099511627776', '7', '7']
    """
    rows = read_table(Path(path), known, ("label",))
    rows.require("label")
    if not len(rows):
        raise ValueError(f"{path} has no rows, but each embedding needs one.")
    return rows


def _match(path: Path, own: Rows, labels: Path, given: Rows) -> Rows:
    """Reorder the rows of a table of labels to match the vectors, by path."""
    names, wanted = ([*map(without_invisible, rows.names)] for rows in (given, own))
    place = {name: row for row, name in enumerate(names)}
    strange = next((name for name in wanted if name not in place), None)
    if strange is not None:
        raise ValueError(f"{labels} lacks {strange}, which is in {path}.")
    if not len(place) == len({*wanted}) == len(given) == len(own):
        raise ValueError(f"{labels} and {path} name their rows in another order, and some twice: use one order.")
    return given.take([place[name] for name in wanted])
