"""Rows of a file of vectors, as a gallery takes them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from proxemic.arrays import as_tensor
from proxemic.data.embeddings import LabelledEmbeddings, read_embeddings
from proxemic.data.embeddings.files import MADE_BY, PRECISION
from proxemic.data.embeddings.formats import read_metadata, rectangles
from proxemic.data.tables import check_size
from proxemic.files import readable
from proxemic.retrieval.stores import GalleryInfo


@dataclass(frozen=True, eq=False)
class VectorRows:
    """Vectors, and what is known of them.

    Args:
        vectors: One for each row.
        names: What each row is known by.
        labels: The label of each, or None.
        columns: Further columns of texts.
        made_by: The checksum of the model that made them, where the file says so.
        precision: The precision in which that model computed, likewise.
    """

    vectors: Float32[Tensor, "rows dim"]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    columns: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    made_by: str | None = None
    precision: str | None = None

    @classmethod
    def of(
        cls, content: LabelledEmbeddings, metadata: Mapping[str, str] = MappingProxyType({}), source: str | None = None
    ) -> "VectorRows":
        """Take names, labels and groups; rows without names are known by the file that they come from and their row."""
        rows, count = content.rows, len(content.embeddings)
        if rows.paths is None and source is None:
            raise ValueError("rows has no paths, by which a gallery knows its rows: give them, or use add_vectors.")
        names = rows.paths or tuple(f"{source}, row {row}" for row in range(count))
        labels = tuple(rows.label_texts() or [None] * count)
        groups = {"sequence": rows.sequences, "category": rows.categories}
        columns = {name: group.texts() for name, group in groups.items() if group is not None}
        made = metadata.get(MADE_BY), metadata.get(PRECISION)
        return cls(content.embeddings.detach().float().cpu(), names, labels, columns, *made)


def check_vectors(vectors: Any, info: GalleryInfo, address: str) -> Float32[np.ndarray, "rows dim"]:
    """Finite float32 vectors of the gallery's length, of unit length where it is searched by cosine."""
    tensor = as_tensor("vectors", vectors).detach().cpu()
    if tensor.ndim != 2 or tensor.shape[1] != info.dim or not tensor.is_floating_point():
        raise ValueError(
            f"vectors are {str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}, but those of "
            f"{address} are floats [rows, {info.dim}]."
        )
    numbers = tensor.float()
    for row, why in useless_vectors(numbers, info.distance).items():
        raise ValueError(f"vector {row} {why}: leave it out, or make it anew.")
    if info.distance == "cosine":
        # In float64: a length whose square is too large for float32 is none that should be lost.
        numbers = torch.nn.functional.normalize(numbers.double(), dim=1, eps=0.0).float()
    return numbers.contiguous().numpy()


def useless_vectors(vectors: Float32[Tensor, "rows dim"], distance: str) -> dict[int, str]:
    """The rows that nothing can be compared with, from 0, and why."""
    whole = vectors.isfinite().all(1)
    why = dict.fromkeys((~whole).nonzero()[:, 0].tolist(), "has a number that is not finite")
    if distance == "cosine":
        why |= dict.fromkeys((vectors == 0).all(1).nonzero()[:, 0].tolist(), "is zero, which has no direction")
    return why


def is_vector_file(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a file of vectors: .npy, .safetensors, or Parquet with a column `embedding`."""
    path = Path(source)
    if path.suffix.lower() in (".npy", ".safetensors"):
        return True
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    import pyarrow.parquet

    try:
        return "embedding" in pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError):
        return False  # what reads it says so


def read_vector_rows(path: Path) -> VectorRows:
    """Read a file of vectors; of Parquet all columns, as texts, and of those only `embedding` is needed."""
    source = readable(path.absolute())
    if path.suffix.lower() != ".parquet":
        content = read_embeddings(path)
        return VectorRows.of(content, read_metadata(path), source)
    import pyarrow.parquet

    check_size(path)
    count, dim, _, chunks = rectangles(path)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
        vectors = np.concatenate([np.empty((0, dim), np.float32), *(chunk.astype(np.float32) for chunk in chunks)])
    named = [name for name in pyarrow.parquet.read_schema(path).names if name != "embedding"]
    texts = pyarrow.parquet.read_table(path, columns=named).to_pydict() if named else {}
    columns = {name: tuple(map(_text, values)) for name, values in texts.items()}
    numbered = [f"{source}, row {row}" for row in range(count)]
    # An empty path stays one, and is refused.
    names = tuple(name or "" for name in columns.pop("path", numbered))
    labels = columns.pop("label", (None,) * count)
    metadata = read_metadata(path)
    made = metadata.get(MADE_BY), metadata.get(PRECISION)
    return VectorRows(torch.from_numpy(vectors), names, labels, columns, *made)


def _text(value: object) -> str | None:
    text = "" if value is None else str(value).strip()
    return None if text.lower() in ("", "nan") else text
