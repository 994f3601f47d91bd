"""Which classes are taken for each other: pairs of classes by their nearest neighbours."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ConfusedPair:
    """Two classes of which queries have the other's pictures nearest.

    Args:
        classes: Their labels, the smaller first.
        count: Queries of either class whose nearest neighbour belongs to the other.
        queries: Queries of both classes.
        examples: These queries by their numbers, those with the nearest neighbours first.
    """

    classes: tuple[int, int]
    count: int
    queries: int
    examples: Int64[Tensor, " count"]

    @property
    def share(self) -> float:
        """The share of the queries of both classes that are confused, in (0, 1]."""
        return self.count / self.queries


def confused_pairs(
    labels: Int64[Tensor, " queries"],
    nearest_labels: Int64[Tensor, " others"],
    distances: Float[Tensor, " distances"],
) -> list[ConfusedPair]:
    """Count, for each pair of classes, the queries of either whose nearest neighbour belongs to the other.

    Args:
        labels: The class of each query; those below 0 have none, and are left out.
        nearest_labels: The class of the nearest neighbour of each, likewise.
        distances: To that neighbour.

    Returns:
        The pairs that are confused at all: by falling count, then by falling share, then by their labels.

    >>> labels, nearest = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 2])
    >>> [(pair.classes, pair.count, pair.queries) for pair in confused_pairs(labels, nearest, torch.zeros(5))]
    [((0, 1), 2, 4)]
    """
    queries = labels[labels >= 0].bincount()
    wrong = ((labels >= 0) & (nearest_labels >= 0) & (labels != nearest_labels)).nonzero().squeeze(1)
    wrong = wrong[distances[wrong].argsort(stable=True)]
    both = torch.stack([labels[wrong], nearest_labels[wrong]], 1).sort(1).values
    # A class of the gallery alone has no queries.
    size = torch.cat([queries, queries.new_zeros(int(both.max()) + 1 if len(both) else 0)])
    pairs, which = both.unique(dim=0, return_inverse=True)
    found = [
        ConfusedPair((one, other), len(examples), int(size[one] + size[other]), examples)
        for number, (one, other) in enumerate(pairs.tolist())
        if len(examples := wrong[which == number])
    ]
    return sorted(found, key=lambda pair: (-pair.count, -pair.share, pair.classes))
