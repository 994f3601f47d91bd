"""How embeddings lie: hubs among the neighbours with a plot, alignment and uniformity."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.analysis.geometry.pairs import MOST_PAIRS, WITHIN, Pairs, legend_below, new_axes
from proxemic.losses.checks import check_positive
from proxemic.metrics import nearest_neighbours
from proxemic.metrics.exact import Distance


@dataclass(frozen=True, eq=False)
class Hubness:
    """How often each row is a neighbour.

    Args:
        occurrences: N_k, the number of other rows that have the row among their k nearest; its mean is k.
        k: Number of neighbours of each row.
    """

    occurrences: Int64[Tensor, "rows"]
    k: int

    @property
    def skewness(self) -> float:
        r"""$E[(N_k - k)^3] / \sigma^3$: the larger the stronger the hubs; 0 where all rows occur equally often."""
        away = self.occurrences.double() - self.k
        variance = away.square().mean()
        return float(away.pow(3).mean() / variance**1.5) if variance > 0 else 0.0

    @property
    def antihubs(self) -> float:
        """Share of the rows that are nobody's neighbour, in [0, 1)."""
        return float((self.occurrences == 0).double().mean())

    @property
    def largest(self) -> int:
        """The largest N_k, from k to rows - 1."""
        return int(self.occurrences.max())


def hubness(embeddings: Float[Tensor, "rows ..."], *, k: int = 10, distance: Distance = "cosine") -> Hubness:
    """How often each row is among the k nearest neighbours of the others: N_k.

    Hubs, a few rows that are neighbours of very many, come up in answer to all kinds of queries; anti-hubs are never
    found. Ties go to the first rows, so that of more than k + 1 equal rows the last are anti-hubs.

    Args:
        embeddings: Finite embeddings.
        k: Number of neighbours of each row, from 1 to rows - 1.
        distance: Distance between rows.

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
    """Draw how many rows occur how often among the neighbours, on a logarithmic scale, beside chance.

    >>> plot_occurrences(hubness(torch.eye(4), k=2)).axes[0].get_yscale()
    'log'
    """
    figure, axes = new_axes(title)
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
    legend_below(figure, axes, f"skewness {hubness.skewness:.3f}, {100 * hubness.antihubs:.1f} % in no list", order=-1)
    return figure


def chance_occurrences(hubness: Hubness) -> Float64[Tensor, "numbers"]:
    """How many rows are expected to occur 0, 1, ... largest times if neighbours were drawn at random: binomial.

    >>> chance_occurrences(Hubness(torch.tensor([2, 1, 0]), k=1)).tolist()  # either of two others, each for one half
    [0.75, 1.5, 0.75]
    """
    rows = len(hubness.occurrences)
    n = torch.arange(hubness.largest + 1, dtype=torch.float64)
    others = torch.tensor(rows - 1.0, dtype=torch.float64)
    p = hubness.k / others
    ways = others.add(1).lgamma() - (n + 1).lgamma() - (others - n + 1).lgamma()
    return rows * (ways + torch.xlogy(n, p) + torch.xlogy(others - n, 1 - p)).exp()


@torch.no_grad()
def alignment(
    embeddings: Float[Tensor, "rows ..."],
    labels: Shaped[Tensor, "..."],
    *,
    alpha: float = 2.0,
    max_pairs: int = MOST_PAIRS,
    seed: int = 0,
) -> float:
    r"""How far the pairs of one class lie apart on the unit sphere; 0 where each class is one point.

    $$E_{x, y \text{ of one class}} \lVert \hat x - \hat y \rVert^\alpha$$

    over the pairs that `Pairs` takes.

    Args:
        embeddings: Finite embeddings; only directions count, and a zero vector is orthogonal to all.
        labels: Class of each row, as integers; some class has two rows.
        alpha: Exponent above 0; 2 gives values in [0, 4].
        max_pairs: As in `Pairs`.
        seed: As in `Pairs`.

    Raises:
        ValueError: If an argument is out of its range, or no class has two rows.

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
        raise ValueError("labels has no two rows of one class to measure the distance of: give more rows.")
    return math.fsum(sums) / count


@torch.no_grad()
def uniformity(
    embeddings: Float[Tensor, "rows ..."], *, t: float = 2.0, max_pairs: int = MOST_PAIRS, seed: int = 0
) -> float:
    r"""How evenly rows are spread over the unit sphere: 0 where all are one point; the more even the lower.

    $$\log E_{x \ne y} \exp(-t \lVert \hat x - \hat y \rVert^2)$$

    over the pairs that `Pairs` takes. Random directions in many dimensions have about -2t.

    Args:
        embeddings: Finite embeddings, at least 2 rows; only directions count, and a zero vector is orthogonal to all.
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
