"""Embeddings on disk, ours and those made elsewhere, with what is known of their rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from proxemic.data.embeddings.formats import (
    read_npy,
    read_parquet,
    read_row_table,
    read_safetensors,
    write_npy,
    write_parquet,
    write_safetensors,
)
from proxemic.data.images import ImageSet
from proxemic.data.pixels import FilePixels
from proxemic.data.remote import write_to
from proxemic.data.rows import RowLabels, number_labels
from proxemic.data.vectors import Vectors

GROUP = 65_536
"""Rows of a row group of a Parquet file."""

MADE_BY = "made_by"
"""The key of the metadata of a file that names the model which made its embeddings."""

PRECISION = "precision"
"""The key of the metadata of a file that names the precision in which that model computed."""


@dataclass(frozen=True, eq=False)
class LabelledEmbeddings:
    """Embeddings, and what is known about their rows.

    Args:
        embeddings: One per row; files keep them as float32.
        rows: What is known about the rows.

    Raises:
        ValueError: If there are no embeddings, or the numbers of rows differ.
    """

    embeddings: Float[Tensor, "rows dim"]
    rows: RowLabels = RowLabels()

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 2 or not self.embeddings.numel():
            raise ValueError(f"embeddings has shape {list(self.embeddings.shape)}, but must be [rows, dim], 1 or more.")
        if self.rows.count not in (None, len(self.embeddings)):
            raise ValueError(f"rows has {self.rows.count:,} rows, but embeddings has {len(self.embeddings):,}.")

    @classmethod
    def of_images(cls, embeddings: Float[Tensor, "rows dim"], images: ImageSet) -> "LabelledEmbeddings":
        """Take labels, flags, sequences, categories and, where the images are files, their paths and boxes."""
        return cls(embeddings, rows_of_images(images))


def rows_of_images(images: ImageSet) -> RowLabels:
    """What is known of images, with their paths and boxes where they are files, or of vectors."""
    return RowLabels(
        images.labels,
        images.class_names,
        images.pixels.names if isinstance(images.pixels, FilePixels | Vectors) else None,
        images.is_query,
        images.is_gallery,
        images.sequences,
        images.categories,
    )


def write_embeddings(
    path: str | Path, content: LabelledEmbeddings, made_by: str | None = None, precision: str | None = None
) -> None:
    """Write embeddings as float32, whole or not at all, in the format that the name's ending says.

    ``.safetensors`` holds the tensors ``embeddings``, ``labels``, ``is_query``, ``is_gallery``, ``sequences`` and
    ``categories`` and, as bytes of JSON, ``class_names``, ``paths``, ``sequence_names`` and ``category_names``;
    ``.parquet`` the columns ``embedding`` (lists), ``label`` (text), ``path``, ``is_query``, ``is_gallery``,
    ``sequence`` and ``category``; ``.npy`` the embeddings alone. The metadata of the first two have ``made_by`` and
    ``precision``.

    Args:
        path: The file.
        content: What is written.
        made_by: The checksum, or another name, of the model that made the embeddings; None says nothing.
        precision: The precision in which that model computed, such as ``32-true``; None says nothing.

    Raises:
        ValueError: If the name ends in anything else, or in ``.npy`` where there is more than embeddings to keep.
        UserError: If it cannot be written.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "birds.safetensors"
    >>> rows = RowLabels(torch.tensor([1, 0]), ("jay", "owl"))
    >>> write_embeddings(path, LabelledEmbeddings(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), rows))
    >>> read_embeddings(path).rows.class_names
    ('jay', 'owl')
    """
    embeddings = content.embeddings.detach().float().cpu().numpy()
    chunks = (embeddings[first : first + GROUP] for first in range(0, len(embeddings), GROUP))
    shape = (embeddings.shape[0], embeddings.shape[1])
    write_embedding_chunks(Path(path), chunks, shape, content.rows, made_by, precision)


def write_embedding_chunks(
    path: Path | str,
    chunks: Iterable[Float32[np.ndarray, "chunk dim"]],
    shape: tuple[int, int],
    rows: RowLabels,
    made_by: str | None = None,
    precision: str | None = None,
    folder: Path = Path(),
) -> None:
    """Write embeddings as `write_embeddings`, from one chunk after the other, which need not all be in memory.

    With chunks of `GROUP` rows, the bytes are those of `write_embeddings`. For an address in place of the path, the
    file is first written in the local ``folder``.
    """
    suffix = check_embedding_name(Path(path))
    if suffix == ".npy" and rows.count is not None:
        raise ValueError(f"{path} ends in .npy, which holds numbers alone: keep labels in a .safetensors or .parquet.")
    metadata = {key: value for key, value in ((MADE_BY, made_by), (PRECISION, precision)) if value is not None}
    with write_to(path, folder) as temporary:
        if suffix == ".safetensors":
            write_safetensors(temporary, chunks, shape, rows, metadata)
        elif suffix == ".parquet":
            write_parquet(temporary, chunks, shape, rows, metadata)
        else:
            write_npy(temporary, chunks, shape)


def read_embeddings(path: str | Path, labels: str | Path | None = None) -> LabelledEmbeddings:
    r"""Read embeddings that `write_embeddings` wrote, or that were made elsewhere.

    Floats may have any width, and the only two-dimensional tensor of a ``.safetensors`` file any name. Values that are
    not finite are kept; the metrics reject them.

    Args:
        path: A .safetensors, .npy or .parquet file.
        labels: A file for `read_labels`, which takes precedence over the labels in `path`. Its rows are in the order of
            the embeddings; rows that both files name (``path``) are matched by their names instead.

    Raises:
        ValueError: If a file is missing, damaged, a pickle or of another kind, or the two do not fit together.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> np.save(folder / "birds.npy", np.eye(2))
    >>> _ = (folder / "birds.csv").write_text("label\nowl\njay\n")
    >>> birds = read_embeddings(folder / "birds.npy", folder / "birds.csv")
    >>> birds.embeddings.dtype, birds.rows.labels.tolist(), birds.rows.class_names
    (torch.float32, [1, 0], ('jay', 'owl'))
    """
    path, labels = Path(path), None if labels is None else Path(labels)
    suffix = check_embedding_name(path)
    _check_file(path, "embeddings")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: write it anew.")
    rows = RowLabels()
    if suffix == ".safetensors":
        numbers, rows = read_safetensors(path)
    elif suffix == ".parquet":
        array, rows = read_parquet(path)
        numbers = torch.from_numpy(array)
    else:
        array = read_npy(path)
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise ValueError(f"{path} holds {array.dtype}, but embeddings are float16, float32 or float64.")
        # A copy, in this machine's byte order: the file may change or go.
        numbers = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    if numbers.ndim != 2 or not numbers.numel() or not numbers.is_floating_point():
        raise ValueError(
            f"{path} holds {str(numbers.dtype).removeprefix('torch.')} numbers of shape {list(numbers.shape)}, but "
            "embeddings are floats [rows, dim]: convert them, and scale back those that are quantised."
        )
    if rows.count not in (None, len(numbers)):
        raise ValueError(f"{path} has {len(numbers):,} embeddings, but {rows.count:,} labels, paths or flags.")
    if labels is not None:
        rows = _match(path, len(numbers), rows, labels, read_labels(labels))
    return LabelledEmbeddings(numbers.float(), rows)


def read_labels(path: str | Path) -> RowLabels:
    """Read the labels of rows of embeddings, in their order.

    Args:
        path: A .csv or .parquet table with the column ``label`` and perhaps ``path``, ``is_query``, ``is_gallery``,
            ``sequence`` and ``category``; or a .npy file of integers or texts. Labels are compared as text.

    Raises:
        ValueError: If the file is missing, not sound, or lacks a label.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "labels.npy"
    >>> np.save(path, np.array([2**40, 7, 7]))
    >>> read_labels(path).labels.tolist(), read_labels(path).class_names
    ([0, 1, 1], ('1099511627776', '7'))
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet", ".npy"):
        raise ValueError(f"{path} ends in {suffix or 'nothing'}, but labels are read from .csv, .parquet and .npy.")
    _check_file(path, "labels")
    if suffix != ".npy":
        rows = read_row_table(path, needed=("label",))
    else:
        rows = number_labels([str(label) for label in read_label_array(path).tolist()])
    if not rows.count:
        raise ValueError(f"{path} has no rows, but one is needed for each row of the embeddings.")
    return rows


def read_label_array(path: Path) -> np.ndarray:
    """Map the labels of a .npy file into memory."""
    array = read_npy(path)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise ValueError(
            f"{path} holds {array.dtype} of shape {list(array.shape)}, but labels are integers or texts, [rows]."
        )
    return array


def check_embedding_name(path: Path) -> str:
    """Give the ending of the name, in small letters; raise `ValueError` where embeddings have no such format."""
    suffix = path.suffix.lower()
    instead = "use .safetensors, .npy (numpy.save) or .parquet"
    if suffix in (".pt", ".pth", ".pkl", ".pickle", ".ckpt"):
        raise ValueError(f"{path} is a pickle by its name, and opening one may run code: {instead}.")
    if suffix not in (".safetensors", ".npy", ".parquet"):
        raise ValueError(f"{path} ends in {suffix or 'nothing'}, which is no format of embeddings here: {instead}.")
    return suffix


def _check_file(path: Path, content: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: give a file of {content}.")


def _match(path: Path, count: int, rows: RowLabels, labels: Path, given: RowLabels) -> RowLabels:
    if given.count != count:
        raise ValueError(f"{labels} has {given.count:,} rows, but {path} has {count:,} embeddings.")
    if rows.paths is not None and given.paths is not None and rows.paths != given.paths:
        place = {name: index for index, name in enumerate(given.paths)}
        strange = next((name for name in rows.paths if name not in place), None)
        if strange is not None:
            raise ValueError(f"{labels} does not name {strange}, which {path} has an embedding of.")
        if not len(place) == len(set(rows.paths)) == count:
            raise ValueError(f"{labels} and {path} name their rows in another order, and some twice: use one order.")
        given = given.take(torch.tensor([place[name] for name in rows.paths]))
    return given.override(rows)
