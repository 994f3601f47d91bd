"""Small files of vectors with something to learn: a class is a direction in a few of the numbers, the rest is noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

CLASSES, EACH, DIM = 12, 6, 24


def some_vectors(classes: int = CLASSES, each: int = EACH, dim: int = DIM) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, dim)) * (np.arange(dim) < dim // 3)
    labels = np.arange(classes * each) % classes
    vectors = centres[labels] + rng.normal(size=(classes * each, dim))
    return vectors.astype(np.float32), [f"class {label:02d}" for label in labels]


def write_table(path: Path, vectors: np.ndarray | None = None, /, **columns: Any) -> Path:
    """A Parquet file with the column embedding, where vectors are given, and others."""
    content: dict[str, Any] = dict(columns)
    if vectors is not None:
        kind = pyarrow.list_(pyarrow.from_numpy_dtype(vectors.dtype), vectors.shape[1])
        content["embedding"] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), type=kind)
    pyarrow.parquet.write_table(pyarrow.table(content), path)
    return path
