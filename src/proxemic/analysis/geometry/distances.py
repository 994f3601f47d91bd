"""How far rows of one class lie apart, and how far those of two."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.analysis.geometry.pairs import MOST_PAIRS, Pairs
from proxemic.metrics.exact import Distance


@dataclass(frozen=True, eq=False)
class ClassDistances:
    """Distances of pairs of rows of one class, and of two.

    Args:
        edges: Edges of the bins, evenly spaced from the smallest distance to the largest.
        within: Ordered pairs of one class in each bin.
        between: Ordered pairs of two classes in each bin.
        within_mean: Mean of the distances themselves, not of the bins, like the next three.
        within_std: Standard deviation over the pairs.
        between_mean: Mean like `within_mean`.
        between_std: Standard deviation like `within_std`.
        anchors: Rows that were compared with all: all of them, or a sample (`Pairs`).
    """

    edges: Float64[Tensor, "edges"]
    within: Int64[Tensor, "bins"]
    between: Int64[Tensor, "bins"]
    within_mean: float
    within_std: float
    between_mean: float
    between_std: float
    anchors: int

    @property
    def auc(self) -> float:
        """The probability that a random pair of one class is nearer than one of two, in [0, 1]; 1 is perfect.

        Of distances in the same bin each is the smaller one half of the time.
        """
        farther = self.between.flip(0).cumsum(0).flip(0) - self.between
        wins = (self.within.double() * (farther + self.between / 2)).sum()
        return float(wins / self.within.sum() / self.between.sum())

    @property
    def auc_error(self) -> float:
        """How much `auc` may be off, at most: half the probability of two distances in one bin."""
        ties = (self.within.double() * self.between).sum()
        return float(ties / self.within.sum() / self.between.sum() / 2)

    def coarser(self, bins: int) -> "ClassDistances":
        """The same with fewer bins, for a plot.

        Args:
            bins: Number of bins, a divisor of those there are.

        Raises:
            ValueError: If it does not divide them.
        """
        there = len(self.within)
        if bins < 1 or there % bins:
            raise ValueError(f"bins is {bins}, but must divide the {there} bins that there are.")
        within, between = (counts.view(bins, -1).sum(1) for counts in (self.within, self.between))
        spreads = (self.within_mean, self.within_std, self.between_mean, self.between_std)
        return ClassDistances(self.edges[:: there // bins], within, between, *spreads, self.anchors)


@torch.no_grad()
def class_distances(
    embeddings: Float[Tensor, "rows ..."],
    labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    bins: int = 4096,
    max_pairs: int = MOST_PAIRS,
    seed: int = 0,
) -> ClassDistances:
    """Distances within classes and between them, of all pairs; of more than 11,585 rows of a sample (`Pairs`).

    The pairs are walked over twice, for mean and range and then for the histograms and the deviation from the mean.

    Args:
        embeddings: Finite embeddings.
        labels: Class of each row, as integers; some class has two rows, and there are two classes.
        distance: Distance between rows: cosine in [0, 2], or euclidean in the units of the embeddings.
        bins: Number of bins of the histograms, at least 1.
        max_pairs: Largest number of pairs, see `Pairs`.
        seed: Seed of the sample, see `Pairs`.

    Raises:
        ValueError: If an argument is out of its range, or there are no pairs of one class, or of two.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> found = class_distances(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), labels, distance="euclidean")
    >>> found.within_mean, found.between_mean, found.auc
    (1.0, 5.0, 1.0)
    """
    if bins < 1:
        raise ValueError(f"bins is {bins}, but must be at least 1.")
    pairs = Pairs(embeddings, labels, distance, max_pairs, seed)
    counts, sums, low, high = [0, 0], ([], []), math.inf, -math.inf
    for parts in pairs:
        for kind, part in enumerate(parts):
            if len(part):
                counts[kind] += len(part)
                sums[kind].append(float(part.sum()))
                low, high = min(low, float(part.min())), max(high, float(part.max()))
    for count, missing in zip(counts, ("two rows of one class", "rows of two classes"), strict=True):
        if count == 0:
            raise ValueError(f"labels has no {missing} to measure the distance of: give more rows.")
    means = [math.fsum(sums[kind]) / counts[kind] for kind in (0, 1)]
    width = (high - low) or 1.0
    histograms, squares = torch.zeros(2, bins, dtype=torch.int64), ([], [])
    for parts in pairs:
        for kind, part in enumerate(parts):
            squares[kind].append(float((part - means[kind]).square_().sum()))
            places = part.sub_(low).div_(width).mul_(bins).long().clamp_(max=bins - 1)
            histograms[kind] += places.bincount(minlength=bins).cpu()
    within_std, between_std = (math.sqrt(math.fsum(squares[kind]) / counts[kind]) for kind in (0, 1))
    edges = torch.linspace(low, low + width, bins + 1, dtype=torch.float64)
    within, between = histograms
    return ClassDistances(edges, within, between, means[0], within_std, means[1], between_std, len(pairs.anchors))
