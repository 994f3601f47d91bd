"""Find the pairs of classes that nearest neighbours confuse."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ConfusedPair:
    """Two classes, some of whose queries have a nearest neighbour of the other class.

    Args:
        classes: Labels of the classes, the smaller one first.
        count: Number of queries of either class whose nearest neighbour belongs to the other.
        queries: Number of queries of both classes.
        examples: Indices of the confused queries, sorted by the distance to the neighbour.
    """

    classes: tuple[int, int]
    count: int
    queries: int
    examples: Int64[Tensor, " count"]

    @property
    def share(self) -> float:
        """The fraction of the queries of both classes that are confused, in (0, 1]."""
        return self.count / self.queries


def confused_pairs(
    labels: Int64[Tensor, " queries"],
    nearest_labels: Int64[Tensor, " others"],
    distances: Float[Tensor, " distances"],
) -> list[ConfusedPair]:
    """Count, for each pair of classes, the queries of either whose nearest neighbour belongs to the other.

    Args:
        labels: Class of each query; negative labels mean no class, and are ignored.
        nearest_labels: Class of the nearest neighbour of each query; negative labels are ignored.
        distances: Distance of each query to its nearest neighbour.

    Returns:
        The pairs with at least one confused query, sorted by decreasing count, then decreasing fraction, then labels.

    >>> labels, nearest = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 2])
    >>> [(pair.classes, pair.count, pair.queries) for pair in confused_pairs(labels, nearest, torch.zeros(5))]
    [((0, 1), 2, 4)]
    """
    queries = labels[labels >= 0].bincount()
    wrong = ((labels >= 0) & (nearest_labels >= 0) & (labels != nearest_labels)).nonzero().squeeze(1)
    wrong = wrong[distances[wrong].argsort(stable=True)]
    both = torch.stack([labels[wrong], nearest_labels[wrong]], 1).sort(1).values
    # A class that is only in the gallery has no queries.
    size = torch.cat([queries, queries.new_zeros(int(both.max()) + 1 if len(both) else 0)])
    pairs, which = both.unique(dim=0, return_inverse=True)
    found = [
        ConfusedPair((one, other), len(examples), int(size[one] + size[other]), examples)
        for number, (one, other) in enumerate(pairs.tolist())
        if len(examples := wrong[which == number])
    ]
    return sorted(found, key=lambda pair: (-pair.count, -pair.share, pair.classes))
