"""Distances of pairs of rows, of all or of a sample, within classes and between them, with a plot."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.analysis.drawing import add_legend, new_figure
from proxemic.metrics.exact import Distance, ExactRows, distance_block

WITHIN, BETWEEN = "#0072b2", "#d55e00"
MOST_PAIRS = 2**27
_ROWS, _COLUMNS = 512, 4096  # of a tile: 16 MB


class Pairs:
    """The distances of ordered pairs of different rows, one tile at a time.

    Up to √max_pairs rows (11,585) all pairs are taken. Of more rows a seeded sample of max_pairs/rows, the anchors, is
    compared with all rows: an anchor meets every row of its class, as it would not in a sample of both sides.
    Distances are exact (`proxemic.metrics.exact`), so that neither the tiles nor the order of the rows change what is
    counted of them.

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

    def __init__(
        self,
        embeddings: Float[Tensor, "rows ..."],
        labels: Shaped[Tensor, "..."],
        distance: Distance = "cosine",
        max_pairs: int = MOST_PAIRS,
        seed: int = 0,
    ) -> None:
        shape = embeddings.shape
        if len(shape) != 2 or shape[0] < 2:
            raise ValueError(f"embeddings has shape {list(shape)}, but must be [rows, dim] with 2 rows or more.")
        if labels.shape != shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels has {labels.dtype} and shape {list(labels.shape)}, but must be int64 and [{shape[0]}], one "
                "per row."
            )
        if distance not in ("cosine", "euclidean"):
            raise ValueError(f"distance is {distance!r}, but must be 'cosine' or 'euclidean'.")
        if max_pairs < shape[0]:
            raise ValueError(
                f"max_pairs is {max_pairs}, but must be at least {shape[0]}, the number of rows that one row is "
                "compared with."
            )
        anchors = torch.arange(shape[0])
        if shape[0] ** 2 > max_pairs:
            shuffled = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
            anchors = shuffled[: max_pairs // shape[0]].sort().values
        self.rows = ExactRows(embeddings, "embeddings")
        self.distance: Distance = distance
        self.anchors, self.labels = (each.to(self.rows.rows.device) for each in (anchors, labels))

    def __iter__(self) -> Iterator[tuple[Float64[Tensor, "within"], Float64[Tensor, "between"]]]:
        """The distances of the pairs of one class, and of those of two classes, of each tile."""
        for some in self.anchors.split(_ROWS):
            for start in range(0, len(self.rows), _COLUMNS):
                part = slice(start, min(start + _COLUMNS, len(self.rows)))
                distances = distance_block(self.rows, self.rows, some, part, self.distance)
                same = self.labels[some, None] == self.labels[part]
                itself = some[:, None] == torch.arange(part.start, part.stop, device=some.device)
                yield distances[same & ~itself], distances[~same]


@dataclass(frozen=True, eq=False)
class ClassDistances:
    """Distances of the pairs of rows of one class, and of those of two classes.

    Args:
        edges: Edges of the bins, evenly spaced from the smallest distance to the largest.
        within: Number of ordered pairs of one class in each bin.
        between: Number of ordered pairs of two classes in each bin.
        within_mean: Mean of the distances themselves, not of the bins, like the next three.
        within_std: Standard deviation over the pairs.
        between_mean: As `within_mean`.
        between_std: As `within_std`.
        anchors: Number of rows that were compared with all rows (`Pairs`).
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
        """The probability that a random pair of one class is nearer than one of two; ties in a bin count as half."""
        farther = self.between.flip(0).cumsum(0).flip(0) - self.between
        wins = (self.within.double() * (farther + self.between / 2)).sum()
        return float(wins / self.within.sum() / self.between.sum())

    def coarser(self, bins: int) -> "ClassDistances":
        """The same with fewer bins; raises a `ValueError` unless their number divides the number of bins."""
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
    """Distances within classes and between them, of all pairs or of the sample that `Pairs` takes.

    Args:
        embeddings: Finite embeddings.
        labels: Class of each row, as integers; some class has two rows, and there are two classes.
        distance: Distance between rows: cosine in [0, 2], or euclidean in the units of the embeddings.
        bins: Number of bins of the histograms, at least 1.
        max_pairs: As in `Pairs`.
        seed: As in `Pairs`.

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


def plot_class_distances(distances: ClassDistances, *, distance: Distance, bins: int = 64, title: str = "") -> Any:
    """Draw both histograms, each as shares of its own pairs, with the means.

    Raises:
        ValueError: If the bins do not divide those there are.

    >>> found = class_distances(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> plot_class_distances(found, distance="cosine").axes[0].get_xlabel()
    'cosine distance'
    """
    binned = distances.coarser(bins)
    figure, axes = new_axes(title)
    for name, colour, counts, mean in (
        ("one class", WITHIN, binned.within, binned.within_mean),
        ("two classes", BETWEEN, binned.between, binned.between_mean),
    ):
        shares = (100 * counts.double() / counts.sum()).numpy()
        label = f"pairs of {name}; dashed: mean {mean:.4g}"
        axes.stairs(shares, binned.edges.numpy(), fill=True, color=colour, alpha=0.3)
        axes.stairs(shares, binned.edges.numpy(), color=colour, linewidth=1.2, label=label)
        axes.axvline(mean, color=colour, linewidth=1, linestyle="--")
    axes.set_xlim(float(distances.edges[0]), float(distances.edges[-1]))
    axes.set_ylim(bottom=0)
    unit = "" if distance == "cosine" else ", in units of the embeddings"
    axes.set_xlabel(f"{distance} distance{unit}", fontsize=9)
    axes.set_ylabel("% of these pairs in each bin", fontsize=9)
    legend_below(figure, axes, f"P(within < between) = {distances.auc:.4f}")
    return figure


def new_axes(title: str) -> tuple[Any, Any]:
    """A figure with axes for bars."""
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend_below(figure: Any, axes: Any, title: str, order: int = 1) -> None:
    """Add the legend below the axes, where no histogram can reach."""
    handles, labels = axes.get_legend_handles_labels()
    add_legend(figure, handles=handles[::order], labels=labels[::order], title=title, title_fontsize=9, ncols=2,
               loc="outside lower center")  # fmt: skip
