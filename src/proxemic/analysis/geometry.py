"""Measure the geometry of embeddings: hubs, distances within and between classes, alignment and uniformity."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.analysis.drawing import add_legend, hide_frame, new_figure
from proxemic.losses.checks import check_positive
from proxemic.metrics import nearest_neighbours
from proxemic.metrics.arrays import as_integers
from proxemic.metrics.exact import Distance, check_distance, comparable_rows, distance_block

WITHIN, BETWEEN = "#0072b2", "#d55e00"
MOST_PAIRS = 2**27
_ROWS, _COLUMNS = 512, 4096  # of a tile: 16 MB


class Pairs:
    """Iterate over the distances of ordered pairs of different samples, one tile at a time.

    With up to √max_pairs samples (11,585), all pairs are used. With more samples n, max_pairs/n anchors, drawn by the
    seed, are compared with all samples, so that an anchor still meets every sample of its class. Distances are exact
    (`proxemic.metrics.exact`): results depend neither on the tiles nor on the order of the samples.

    The cosine distance is 1 - cos; the distance to a zero vector is 1. `ValueError` is raised for NaN or infinite
    embeddings, and for ``max_pairs`` below the number of samples.
    """

    def __init__(
        self,
        embeddings: Float[Tensor, "samples ..."],
        labels: Shaped[Tensor, "..."],
        distance: Distance = "cosine",
        max_pairs: int = MOST_PAIRS,
        seed: int = 0,
    ) -> None:
        shape = embeddings.shape
        if len(shape) != 2 or shape[0] < 2:
            raise ValueError(f"embeddings has shape {list(shape)}, but must be [samples, dim] with 2 samples or more.")
        labels = as_integers("labels", labels, shape[0])
        check_distance(distance)
        if max_pairs < shape[0]:
            raise ValueError(
                f"max_pairs is {max_pairs}, but must be at least {shape[0]}, the number of samples that an anchor is "
                "compared with."
            )
        anchors = torch.arange(shape[0])
        if shape[0] ** 2 > max_pairs:
            shuffled = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
            anchors = shuffled[: max_pairs // shape[0]].sort().values
        self.rows, _ = comparable_rows(embeddings, embeddings, distance, ("embeddings", "embeddings"))
        self.distance: Distance = distance
        self.anchors, self.labels = (value.to(self.rows.rows.device) for value in (anchors, labels))

    def __iter__(self) -> Iterator[tuple[Float64[Tensor, "within"], Float64[Tensor, "between"]]]:
        """Yield the distances of pairs within a class and of pairs of two classes, tile by tile."""
        for some in self.anchors.split(_ROWS):
            for start in range(0, len(self.rows), _COLUMNS):
                part = slice(start, min(start + _COLUMNS, len(self.rows)))
                distances = distance_block(self.rows, self.rows, some, part, self.distance)
                same = self.labels[some, None] == self.labels[part]
                itself = some[:, None] == torch.arange(part.start, part.stop, device=some.device)
                yield distances[same & ~itself], distances[~same]


@dataclass(frozen=True, eq=False)
class ClassDistances:
    """The distributions of distances between samples of one class and between samples of two classes.

    Args:
        edges: Edges of the bins, evenly spaced from the smallest to the largest distance.
        within: Number of ordered pairs of one class in each bin.
        between: Number of ordered pairs of two classes in each bin.
        within_mean: Mean of the distances within classes (exact, not from the bins, as are the next three).
        within_std: Standard deviation of the distances within classes.
        between_mean: Mean of the distances between classes.
        between_std: Standard deviation of the distances between classes.
        anchors: Number of samples that were compared with all samples (see `Pairs`).
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
        """The probability that a pair of one class is nearer than a pair of two; ties in a bin count one half."""
        farther = self.between.flip(0).cumsum(0).flip(0) - self.between
        wins = (self.within.double() * (farther + self.between / 2)).sum()
        return float(wins / self.within.sum() / self.between.sum())

    def coarser(self, bins: int) -> "ClassDistances":
        """Merge the bins to a smaller number, which must divide the current number."""
        there = len(self.within)
        assert there % bins == 0
        within, between = (counts.view(bins, -1).sum(1) for counts in (self.within, self.between))
        spreads = (self.within_mean, self.within_std, self.between_mean, self.between_std)
        return ClassDistances(self.edges[:: there // bins], within, between, *spreads, self.anchors)


@torch.no_grad()
def class_distances(
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    bins: int = 4096,
    max_pairs: int = MOST_PAIRS,
    seed: int = 0,
) -> ClassDistances:
    """Compute the distributions of distances within and between classes, from the pairs of `Pairs`.

    Args:
        embeddings: Finite embeddings ``[samples, dim]``.
        labels: Class of each sample, as integers, with two classes or more and two samples in some class.
        distance: Distance between samples: cosine in [0, 2], or euclidean in the units of the embeddings.
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
    for count, missing in zip(counts, ("two samples of one class", "samples of two classes"), strict=True):
        if count == 0:
            raise ValueError(f"labels has no {missing} to measure the distance of: give more samples.")
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


def plot_class_distances(distances: ClassDistances, *, distance: Distance, title: str = "") -> Any:
    """Draw both histograms as percentages of their pairs, with the means."""
    binned = distances.coarser(64)
    figure, axes = _new_axes(title)
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
    _legend_below(figure, axes, f"P(within < between) = {distances.auc:.4f}")
    return figure


def _new_axes(title: str) -> tuple[Any, Any]:
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.tick_params(labelsize=8)
    hide_frame(axes, grid="y")
    return figure, axes


def _legend_below(figure: Any, axes: Any, title: str, order: int = 1) -> None:
    """Add a legend below the axes."""
    handles, labels = axes.get_legend_handles_labels()
    add_legend(figure, handles=handles[::order], labels=labels[::order], title=title, title_fontsize=9, ncols=2,
               loc="outside lower center")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Hubness:
    """How often each sample is a nearest neighbour.

    Args:
        occurrences: Number N_k of other samples that have the sample among their k nearest neighbours; the mean is k.
        k: Number of neighbours of each sample.
    """

    occurrences: Int64[Tensor, "samples"]
    k: int

    @property
    def skewness(self) -> float:
        r"""The skewness $E[(N_k - k)^3] / \sigma^3$, which grows with hubs and is 0 if all N_k are equal."""
        away = self.occurrences.double() - self.k
        variance = away.square().mean()
        return float(away.pow(3).mean() / variance**1.5) if variance > 0 else 0.0

    @property
    def antihubs(self) -> float:
        """The fraction of samples that no other sample has among its neighbours, in [0, 1)."""
        return float((self.occurrences == 0).double().mean())

    @property
    def largest(self) -> int:
        """The largest N_k, from k to the number of samples less 1."""
        return int(self.occurrences.max())


def hubness(embeddings: Float[Tensor, "samples ..."], *, k: int = 10, distance: Distance = "cosine") -> Hubness:
    """Count how often each sample is among the k nearest neighbours of the other samples (N_k).

    Hubs are the neighbours of very many samples and appear among the results of unrelated queries; anti-hubs are never
    found. Ties go to the first samples: among more than k + 1 equal embeddings, the last ones are anti-hubs.

    Args:
        embeddings: Finite embeddings.
        k: Number of neighbours of each sample, from 1 to the number of samples less 1.
        distance: Distance between samples.

    Raises:
        ValueError: If an argument is out of its range, or embeddings are NaN or infinite.

    Source: Radovanović, Nanopoulos and Ivanović, Hubs in Space: Popular Nearest Neighbors in High-Dimensional Data,
    JMLR 11 (2010), S of N_k.

    >>> found = hubness(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), k=1, distance="euclidean")
    >>> found.occurrences.tolist(), found.largest, round(found.antihubs, 3)
    ([2, 1, 0], 2, 0.333)
    """
    itself = torch.arange(len(embeddings))
    _, neighbours = nearest_neighbours(embeddings, embeddings, k=k, distance=distance, exclude=itself)
    return Hubness(neighbours.flatten().bincount(minlength=len(embeddings)).cpu(), k)


def plot_occurrences(hubness: Hubness, *, title: str = "") -> Any:
    """Draw the number of samples for each N_k on a logarithmic scale, with the expectation by chance."""
    figure, axes = _new_axes(title)
    rows = hubness.occurrences.bincount().numpy()
    axes.bar(range(len(rows)), rows, width=1.0, color=WITHIN, alpha=0.6, edgecolor="white", linewidth=0.3,
             label="images")  # fmt: skip
    chance = chance_occurrences(hubness)
    shown = chance >= 0.5
    axes.plot(torch.arange(len(chance))[shown], chance[shown], color="#444444", linewidth=1.2, linestyle="--",
              label="with neighbours drawn at random")  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xlim(-0.75, len(rows) - 0.25)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(f"N, in how many lists of {hubness.k} nearest neighbours an image is", fontsize=9)
    axes.set_ylabel("images", fontsize=9)
    _legend_below(figure, axes, f"skewness {hubness.skewness:.3f}, {100 * hubness.antihubs:.1f} % in no list", order=-1)
    return figure


def chance_occurrences(hubness: Hubness) -> Float64[Tensor, "numbers"]:
    """Compute the expected number of samples for N_k = 0, 1, ..., largest if neighbours were random (binomial)."""
    rows = len(hubness.occurrences)
    n = torch.arange(hubness.largest + 1, dtype=torch.float64)
    others = torch.tensor(rows - 1.0, dtype=torch.float64)
    p = hubness.k / others
    ways = others.add(1).lgamma() - (n + 1).lgamma() - (others - n + 1).lgamma()
    return rows * (ways + torch.xlogy(n, p) + torch.xlogy(others - n, 1 - p)).exp()


@torch.no_grad()
def alignment(
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    *,
    alpha: float = 2.0,
    max_pairs: int = MOST_PAIRS,
    seed: int = 0,
) -> float:
    r"""Measure how far apart pairs of one class are on the unit sphere; 0 if each class is a single point.

    $$E_{x, y \text{ of one class}} \lVert \hat x - \hat y \rVert^\alpha$$

    over the pairs of `Pairs`.

    Args:
        embeddings: Finite embeddings ``[samples, dim]``; only directions matter, and a zero vector is orthogonal to
            all.
        labels: Class of each sample, as integers, with two samples in some class.
        alpha: Exponent above 0; 2 gives values in [0, 4].
        max_pairs: As in `Pairs`.
        seed: As in `Pairs`.

    Raises:
        ValueError: If an argument is out of its range, or no class has two samples.

    Source: Wang and Isola, Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere, ICML 2020, the alignment loss; two images of a class are their two views of an image.

    >>> alignment(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 1]))
    2.0
    """
    check_positive("alpha", alpha)
    count, sums = 0, []
    for part, _ in Pairs(embeddings, labels, "cosine", max_pairs, seed):
        count += len(part)
        sums.append(float((2 * part).clamp_(min=0).pow_(alpha / 2).sum()))
    if count == 0:
        raise ValueError("labels has no two samples of one class to measure the distance of: give more samples.")
    return math.fsum(sums) / count


@torch.no_grad()
def uniformity(
    embeddings: Float[Tensor, "samples ..."], *, t: float = 2.0, max_pairs: int = MOST_PAIRS, seed: int = 0
) -> float:
    r"""Measure how evenly embeddings are spread over the unit sphere: 0 if all are one point; lower is more even.

    $$\log E_{x \ne y} \exp(-t \lVert \hat x - \hat y \rVert^2)$$

    over the pairs that `Pairs` takes. Random directions in many dimensions have about -2t.

    Args:
        embeddings: Finite embeddings of at least 2 samples; only directions count, and a zero vector is orthogonal to
            all.
        t: Factor of the squared distance, above 0.
        max_pairs: As in `Pairs`.
        seed: As in `Pairs`.

    Raises:
        ValueError: If an argument is out of its range.

    Source: Wang and Isola, as `alignment`, the uniformity loss.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [0.0, 1.0]])), 12)
    -4.0
    """
    check_positive("t", t)
    one_class = torch.zeros(len(embeddings), dtype=torch.int64)
    count, logs = 0, []
    for part, _ in Pairs(embeddings, one_class, "cosine", max_pairs, seed):
        count += len(part)
        logs.append((-2 * t * part).logsumexp(0))
    return float(torch.stack(logs).logsumexp(0)) - math.log(count)
