"""Plots of the scores that the gradient of a score depends on, as figure 1 of the MPA paper."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.analysis.drawing import add_legend, new_figure
from proxemic.analysis.gradients.dependence import THRESHOLD

POSITIVE, NEGATIVE, ANCHOR = "#d55e00", "#0072b2", "#999999"
ASKED = "#f0e442"
SHAPES = "osDv^P"


def plot_gradients(
    dependence: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    embedding: int,
    label: int,
    *,
    proxies_per_class: int = 1,
    title: str = "",
    axes: Any = None,
) -> Any:
    """Draw the scores that enter the gradient of one score as lines between embeddings and proxies.

    Shapes are classes. The embedding in question is grey, those of its class red, the rest blue, proxies black. A red
    line is a positive score, a blue one a negative; its width grows with the dependence. The score in question is the
    broad yellow band.

    Args:
        dependence: Dependence of ``S_(embedding, label)`` on all scores, one of `score_dependence`.
        labels: Class of each embedding.
        embedding: i of the score in question.
        label: c of the score in question.
        proxies_per_class: Several are drawn as three.
        title: Title of the plot.
        axes: Matplotlib axes to draw on; None makes a new figure.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> plot_gradients(torch.ones(4, 2), labels, 0, 1, title="all").get_title()
    'all'
    """
    axes = new_figure(3, 3).subplots() if axes is None else axes
    proxies, embeddings = _places(labels, dependence.shape[1])
    asked = (embeddings[embedding], proxies[label])
    axes.plot(*zip(*asked, strict=True), color=ASKED, linewidth=9, solid_capstyle="round", zorder=0)
    for k, d in torch.cartesian_prod(torch.arange(len(labels)), torch.arange(dependence.shape[1])).tolist():
        share = dependence[k, d].item()
        if share > THRESHOLD:
            colour = POSITIVE if labels[k] == d else NEGATIVE
            ends = zip(embeddings[k], proxies[d], strict=True)
            axes.plot(*ends, color=colour, linewidth=0.8 + 1.6 * min(share, 1), zorder=1)
    for number, (place, target) in enumerate(zip(embeddings, labels.tolist(), strict=True)):
        colour = ANCHOR if number == embedding else POSITIVE if target == labels[embedding] else NEGATIVE
        axes.plot(*place, SHAPES[target % 6], color=colour, markersize=10, markeredgecolor="white", zorder=3)
    for target, (x, y) in enumerate(proxies):
        several = proxies_per_class > 1
        for turn in (0.5, 7 / 6, 11 / 6) if several else ():
            spot = (x + 0.11 * math.cos(turn * math.pi), y + 0.11 * math.sin(turn * math.pi))
            axes.plot(*spot, SHAPES[target % 6], color="black", markersize=7, markeredgecolor="white", zorder=3)
        if not several:
            axes.plot(x, y, SHAPES[target % 6], color="black", markersize=12, markeredgecolor="white", zorder=3)
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=9, parse_math=False)
    return axes


def draw_gradients(
    losses: Mapping[str, tuple[int, Float[Tensor, "batch classes batch classes"]]], labels: Int[Tensor, " batch"]
) -> Any:
    """A figure of `plot_gradients`: a column a loss, above a positive score of embedding 0, below a negative.

    Args:
        losses: For each title K and the `score_dependence` of a loss.
        labels: Class of each embedding, the first of them 0.

    >>> from proxemic.analysis import score_dependence
    >>> from proxemic.losses import ProxyAnchorLoss
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> found = score_dependence(ProxyAnchorLoss(2, 2), labels, draws=8)
    >>> figure = draw_gradients({"ProxyAnchor": (1, found)}, labels)
    >>> [axes.get_title() for axes in figure.axes]
    ['ProxyAnchor', '']
    """
    figure = new_figure(max(7.5, 2.5 * len(losses)), 6)
    from matplotlib.lines import Line2D

    panels = figure.subplots(2, len(losses), squeeze=False)
    for column, (title, (proxies_per_class, dependence)) in enumerate(losses.items()):
        for row, label in enumerate((0, 1)):
            plot_gradients(
                dependence[0, label], labels, 0, label, proxies_per_class=proxies_per_class,
                title="" if row else title, axes=panels[row, column],
            )  # fmt: skip
    panels[0, 0].set_ylabel("a positive score", fontsize=10)
    panels[1, 0].set_ylabel("a negative score", fontsize=10)
    lines = {
        "score in question": (ASKED, 8),
        "positive score that enters": (POSITIVE, 2.4),
        "negative score that enters": (NEGATIVE, 2.4),
    }
    dots = {
        "embedding in question": ANCHOR,
        "embedding of the same class": POSITIVE,
        "embedding of another class": NEGATIVE,
        "proxy (three: several a class)": "black",
    }
    handles = [Line2D([], [], color=colour, linewidth=width, label=name) for name, (colour, width) in lines.items()]
    handles += [Line2D([], [], linestyle="", marker="o", color=colour, label=name) for name, colour in dots.items()]
    add_legend(figure, handles=handles, loc="outside lower center", ncols=4 if len(losses) > 2 else 3, fontsize=9)
    return figure


def _places(labels: Int[Tensor, " batch"], classes: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Proxies on an inner circle, and outside of each the embeddings of its class side by side."""
    proxies, embeddings = [], [(0.0, 0.0)] * len(labels)
    for target in range(classes):
        turn = math.pi / 2 - 2 * math.pi * target / classes
        proxies.append((0.68 * math.cos(turn), 0.68 * math.sin(turn)))
        members = torch.nonzero(labels == target).flatten().tolist()
        for place, number in enumerate(members):
            beside = turn + 1.05 * math.pi / classes * (0.5 - (place + 0.5) / len(members)) * min(2, len(members))
            embeddings[number] = (1.2 * math.cos(beside), 1.2 * math.sin(beside))
    return proxies, embeddings
