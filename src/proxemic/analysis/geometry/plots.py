"""Plots of distances within and between classes, and how often images are neighbours."""

from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from proxemic.analysis.drawing import add_legend, hide_spines, new_figure
from proxemic.analysis.geometry.distances import ClassDistances
from proxemic.analysis.geometry.neighbourhoods import Hubness
from proxemic.metrics.exact import Distance

WITHIN, BETWEEN, CHANCE = "#0072b2", "#d55e00", "#444444"


def plot_class_distances(distances: ClassDistances, *, distance: Distance, bins: int = 64, title: str = "") -> Any:
    """Draw both histograms, each as shares of its own pairs, with the means.

    Raises:
        ValueError: If the bins do not divide those there are.

    >>> from proxemic.analysis.geometry import class_distances
    >>> found = class_distances(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> plot_class_distances(found, distance="cosine").axes[0].get_xlabel()
    'cosine distance'
    """
    binned = distances.coarser(bins)
    figure, axes = _axes(title)
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
    _legend(figure, axes, f"P(within < between) = {distances.auc:.4f}")
    return figure


def plot_occurrences(hubness: Hubness, *, title: str = "") -> Any:
    """Draw how many rows occur how often among the neighbours, on a logarithmic scale, beside chance.

    >>> from proxemic.analysis.geometry.neighbourhoods import hubness
    >>> plot_occurrences(hubness(torch.eye(4), k=2)).axes[0].get_yscale()
    'log'
    """
    figure, axes = _axes(title)
    rows = hubness.occurrences.bincount().numpy()
    axes.bar(range(len(rows)), rows, width=1.0, color=WITHIN, alpha=0.6, edgecolor="white", linewidth=0.3,
             label="images")  # fmt: skip
    chance = chance_occurrences(hubness)
    shown = chance >= 0.5
    axes.plot(torch.arange(len(chance))[shown], chance[shown], color=CHANCE, linewidth=1.2, linestyle="--",
              label="with neighbours drawn at random")  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xlim(-0.75, len(rows) - 0.25)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(f"N, in how many lists of {hubness.k} nearest neighbours an image is", fontsize=9)
    axes.set_ylabel("images", fontsize=9)
    _legend(figure, axes, f"skewness {hubness.skewness:.3f}, {100 * hubness.antihubs:.1f} % in no list", order=-1)
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


def _axes(title: str) -> tuple[Any, Any]:
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    hide_spines(axes)
    return figure, axes


def _legend(figure: Any, axes: Any, title: str, order: int = 1) -> None:
    # Below the axes, where no histogram can reach.
    handles, labels = axes.get_legend_handles_labels()
    add_legend(figure, handles=handles[::order], labels=labels[::order], title=title, title_fontsize=9, ncols=2,
               loc="outside lower center")  # fmt: skip
