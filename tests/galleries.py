"""Rows of galleries, and their search written from the formula alone."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from proxemic.data.rows import Rows
from proxemic.retrieval.galleries.items import make_items


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to unit length, as galleries that are searched by cosine do."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_vectors(rows: int, dim: int, seed: int = 0, distance: str = "cosine") -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)
    return unit(vectors) if distance == "cosine" else vectors


def clustered_vectors(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Draw unit vectors in clusters, like embeddings of some classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(rows // 50, 1), dim))
    return unit(centres[rng.integers(len(centres), size=rows)] + rng.normal(scale=0.4, size=(rows, dim)))


def some_items(
    rows: int, first: int = 0, labels: Sequence[str | None] | None = None, **columns: Sequence[str | None]
) -> pa.Table:
    """Rows named by their number, in three classes."""
    numbers = range(first, first + rows)
    labels = labels or [f"class {n % 3}" for n in numbers]
    return make_items(Rows.of(path=[f"/{n}.jpg" for n in numbers], label=labels, **columns))


def naive_search(
    queries: np.ndarray, rows: Mapping[int, np.ndarray], k: int, distance: str
) -> tuple[np.ndarray, np.ndarray]:
    """Distances and ids in float64, of rows by their ids; at one distance, the first id first."""
    ids = np.array(sorted(rows), np.int64)
    distances, found = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1)
    for number, query in enumerate(queries.astype(np.float64)):
        pairs = []
        for id_ in ids.tolist():
            row = rows[id_].astype(np.float64)
            if distance == "cosine":
                pairs.append((1 - query @ row / (np.linalg.norm(query) * np.linalg.norm(row)), id_))
            else:
                pairs.append((np.sqrt(((query - row) ** 2).sum()), id_))
        for place, (value, item) in enumerate(sorted(pairs)[:k]):
            distances[number, place], found[number, place] = value, item
    return distances, found


def recall(found: np.ndarray, right: np.ndarray) -> float:
    """Return the mean share of the right ids that were found."""
    return float(np.mean([len({*one} & {*other}) / len(other) for one, other in zip(found, right, strict=True)]))
