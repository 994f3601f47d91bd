"""Distances of all pairs of rows, or of a sample of them, a tile at a time.

Memory does not grow with the square of the rows. Distances are exact (`proxemic.metrics.exact`), so that neither the
tiles nor the order of the rows change what is counted of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics.exact import Distance, ExactRows, distance_block

MOST_PAIRS = 2**27
_ROWS, _COLUMNS = 512, 4096  # of a tile: 16 MB


@dataclass(frozen=True, eq=False)
class Pairs:
    """Ordered pairs of different rows.

    Up to √max_pairs rows (11,585) all pairs are taken. Of more rows a seeded sample of max_pairs/rows, the anchors, is
    compared with all rows: an anchor meets every row of its class, as it would not in a sample of both sides.

    Args:
        embeddings: Finite embeddings, at least 2 rows.
        labels: Class of each row, as integers.
        distance: Distance between rows; the cosine distance is 1 - cos, and 1 to and from a zero vector.
        max_pairs: Largest number of pairs, at least the number of rows.
        seed: Seed of the sample.

    Raises:
        ValueError: If an argument is out of its range, or embeddings are NaN or infinite.

    >>> [(within, between)] = Pairs(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1]), "euclidean")
    >>> within.tolist(), between.tolist()
    ([1.0, 1.0], [5.0, 4.0, 5.0, 4.0])
    """

    embeddings: Float[Tensor, "rows ..."]
    labels: Shaped[Tensor, "..."]
    distance: Distance = "cosine"
    max_pairs: int = MOST_PAIRS
    seed: int = 0
    rows: ExactRows = field(init=False)
    anchors: Int64[Tensor, "anchors"] = field(init=False)

    def __post_init__(self) -> None:
        shape, labels = self.embeddings.shape, self.labels
        if len(shape) != 2 or shape[0] < 2:
            raise ValueError(f"embeddings has shape {list(shape)}, but must be [rows, dim] with 2 rows or more.")
        if labels.shape != shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels has {labels.dtype} and shape {list(labels.shape)}, but must be int64 and [{shape[0]}], one "
                "a row."
            )
        if self.distance not in ("cosine", "euclidean"):
            raise ValueError(f"distance is {self.distance!r}, but must be 'cosine' or 'euclidean'.")
        if self.max_pairs < shape[0]:
            raise ValueError(
                f"max_pairs is {self.max_pairs}, but must be at least {shape[0]}, the number of rows that one row is "
                "compared with."
            )
        rows, every = ExactRows(self.embeddings, "embeddings"), torch.arange(shape[0])
        if shape[0] ** 2 > self.max_pairs:
            shuffled = torch.randperm(shape[0], generator=torch.Generator().manual_seed(self.seed))
            every = shuffled[: self.max_pairs // shape[0]].sort().values
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "anchors", every.to(rows.rows.device))

    def __iter__(self) -> Iterator[tuple[Float64[Tensor, "within"], Float64[Tensor, "between"]]]:
        """Of each tile the distances of pairs of one class, and of pairs of two."""
        labels = self.labels.to(self.anchors.device)
        for some in self.anchors.split(_ROWS):
            for start in range(0, len(self.rows), _COLUMNS):
                part = slice(start, min(start + _COLUMNS, len(self.rows)))
                distances = distance_block(self.rows, self.rows, some, part, self.distance)
                same = labels[some, None] == labels[part]
                itself = some[:, None] == torch.arange(part.start, part.stop, device=some.device)
                yield distances[same & ~itself], distances[~same]
