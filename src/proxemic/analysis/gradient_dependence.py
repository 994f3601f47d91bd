"""Measure and draw on which class scores the gradient of a class score depends (figure 1 of the MPA paper)."""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.analysis.drawing import add_legend, new_figure
from proxemic.analysis.gradient_characteristics import (
    at_rest,
    random_embeddings,
    random_scores,
    relative_change,
    score_gradients,
    uniform,
)
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count

THRESHOLD = 1e-6
"""The relative change of a gradient above which it depends on a score; rounding changes it by about 1e-13."""

POSITIVE, NEGATIVE, ANCHOR, ASKED = "#d55e00", "#0072b2", "#999999", "#f0e442"
SHAPES = "osDv^P"


def score_dependence(
    loss: ProxyLoss, labels: Int[Tensor, " batch"], *, draws: int = 128, seed: int = 0
) -> Float[Tensor, "batch classes batch classes"]:
    """Measure how much ``∂L/∂S_ic`` (embedding i, class c) changes when the score ``S_kd`` falls: ``[i, c, k, d]``.

    The result is the largest ``|g' − g| / max(|g|, |g'|)``, 0 to 2, over random scores from the whole range of the
    loss's similarity, where ``S_kd`` falls by up to one unit of the logits.

    Args:
        loss: Any proxy loss. If it also reads embeddings, these are held fixed.
        labels: Class of each embedding, from 0 to the largest class, which is at least 1.
        draws: Number of draws of random scores, at least 1. With less than a few dozen, a dependence of a sharp loss
            may stay hidden.
        seed: Seed of the draws.

    Raises:
        ValueError: If an argument is not allowed.

    Source: Saeki et al., Multi-Proxy Anchor Family Loss for Several Types of Gradients, figure 1 and equations 5 to 18.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> found = score_dependence(ProxyAnchorLoss(3, 4), torch.tensor([0, 0, 1, 2]), draws=16)
    >>> (found[0, 1] > 1e-6).int()  # a negative of the proxy 1: all the negatives of that proxy
    tensor([[0, 1, 0],
            [0, 1, 0],
            [0, 0, 0],
            [0, 1, 0]], dtype=torch.int32)
    """
    check_count("draws", draws, 1, "128 are enough")
    classes = int(labels.max()) + 1 if len(labels) else 0
    if not (2 <= classes <= loss.num_classes and labels.min() >= 0):
        raise ValueError(
            f"labels are {labels.tolist()}, but must be classes of the loss, 0 to {loss.num_classes - 1}, and not all "
            "0."
        )
    generator = torch.Generator().manual_seed(seed)
    largest = torch.zeros(len(labels), classes, len(labels), classes, dtype=torch.float64)
    with at_rest(loss):
        for _ in range(draws):
            scores, step = random_scores(loss, labels, classes, generator, ranges=1)
            embeddings = random_embeddings(len(labels), loss.embedding_size, generator)
            before, _ = score_gradients(loss, scores, labels, embeddings)
            falls = step * (1 + uniform(generator, *scores.shape)) / 2
            for k, d in product(range(len(labels)), range(classes)):
                lower = scores.clone()
                lower[k, d] -= falls[k, d]
                after, _ = score_gradients(loss, lower, labels, embeddings)
                change = relative_change(before, after, before.abs().max())
                largest[:, :, k, d] = largest[:, :, k, d].maximum(change)
    return largest


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
    """Draw the scores on which the gradient of one score depends as lines between embeddings and proxies.

    Each class has a shape. The embedding of the given score is grey, other embeddings of its class are red, the rest
    are blue, and proxies are black. The given score is a broad yellow band. Positive scores are red lines and negative
    scores blue lines, whose width grows with the dependence.

    Args:
        dependence: Dependence of the gradient in ``S_(embedding, label)`` on all scores ``[batch, classes]``, a slice
            of `score_dependence`.
        labels: Class of each embedding.
        embedding: Embedding i of the given score.
        label: Class c of the given score.
        proxies_per_class: Number K of proxies per class; several are drawn as three.
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
    for k, d in (dependence > THRESHOLD).nonzero().tolist():
        colour = POSITIVE if labels[k] == d else NEGATIVE
        ends = zip(embeddings[k], proxies[d], strict=True)
        axes.plot(*ends, color=colour, linewidth=0.8 + 1.6 * min(dependence[k, d].item(), 1), zorder=1)
    for number, (place, target) in enumerate(zip(embeddings, labels.tolist(), strict=True)):
        colour = ANCHOR if number == embedding else POSITIVE if target == labels[embedding] else NEGATIVE
        axes.plot(*place, SHAPES[target % 6], color=colour, markersize=10, markeredgecolor="white", zorder=3)
    around = [(0.11 * math.cos(turn * math.pi), 0.11 * math.sin(turn * math.pi)) for turn in (0.5, 7 / 6, 11 / 6)]
    offsets, size = ([(0.0, 0.0)], 12) if proxies_per_class == 1 else (around, 7)
    for target, (x, y) in enumerate(proxies):
        for right, up in offsets:
            style = {"color": "black", "markersize": size, "markeredgecolor": "white", "zorder": 3}
            axes.plot(x + right, y + up, SHAPES[target % 6], **style)
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=9, parse_math=False)
    return axes


def draw_gradients(
    losses: Mapping[str, tuple[int, Float[Tensor, "batch classes batch classes"]]], labels: Int[Tensor, " batch"]
) -> Any:
    """Draw a positive and a negative score by `plot_gradients` for each loss, given K and its `score_dependence`."""
    figure = new_figure(max(7.5, 2.5 * len(losses)), 6)
    panels = figure.subplots(2, len(losses), squeeze=False)
    for column, (title, (proxies_per_class, dependence)) in enumerate(losses.items()):
        for row, label in enumerate((0, 1)):
            plot_gradients(
                dependence[0, label], labels, 0, label, proxies_per_class=proxies_per_class,
                title="" if row else title, axes=panels[row, column],
            )  # fmt: skip
    panels[0, 0].set_ylabel("a positive score", fontsize=10)
    panels[1, 0].set_ylabel("a negative score", fontsize=10)
    dot = {"linestyle": "", "marker": "o"}
    styles = {
        "score in question": {"color": ASKED, "linewidth": 8},
        "positive score that enters": {"color": POSITIVE, "linewidth": 2.4},
        "negative score that enters": {"color": NEGATIVE, "linewidth": 2.4},
        "embedding in question": dot | {"color": ANCHOR},
        "embedding of the same class": dot | {"color": POSITIVE},
        "embedding of another class": dot | {"color": NEGATIVE},
        "proxy (three: several per class)": dot | {"color": "black"},
    }
    add_legend(figure, styles.items(), loc="outside lower center", ncols=4 if len(losses) > 2 else 3, fontsize=9)
    return figure


def _places(labels: Int[Tensor, " batch"], classes: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Place proxies on an inner circle, and the embeddings of each class outside of its proxy."""
    proxies, embeddings = [], [(0.0, 0.0)] * len(labels)
    for target in range(classes):
        turn = math.pi / 2 - 2 * math.pi * target / classes
        proxies.append((0.68 * math.cos(turn), 0.68 * math.sin(turn)))
        members = torch.nonzero(labels == target).flatten().tolist()
        for place, number in enumerate(members):
            angle = turn + 1.05 * math.pi / classes * (0.5 - (place + 0.5) / len(members)) * min(2, len(members))
            embeddings[number] = (1.2 * math.cos(angle), 1.2 * math.sin(angle))
    return proxies, embeddings
