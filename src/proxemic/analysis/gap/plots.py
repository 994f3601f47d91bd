"""Plots of the gap between proxies and the minimisers of the softmax loss."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from proxemic.analysis.drawing import DASHES, add_legend, class_colour, new_figure
from proxemic.analysis.gap.bounds import class_minimizers
from proxemic.analysis.gradients.fields import TARGET, WRONG

MINIMUM, GREY = "#e6ab02", "#999999"
# How each number of `plot_gaps` is drawn, with its name in the legend.
_MARKS = {
    "lower": ("|", "#333333", "L corrected, U of the proof"),
    "lower_sharp": ("4", "#1b9e77", "L, sharpened (C⁻⁴)"),
    "lower_printed": ("x", "#d95f02", "L, printed (C⁻³)"),
    "gap": ("o", "#224466", "mean gap"),
    "upper_printed": ("+", "#d95f02", "U, printed"),
    "upper": ("|", "#333333", None),
}


def three_proxies(epsilon: float = 0.1) -> Float64[Tensor, "3 2"]:
    """The mean-proxy paper's example: proxies at 0, ε and −π/2 radians, the third of which pushes past the second.

    Args:
        epsilon: Angle between the first two, in radians.

    Source: Section 3.1 and Figure 3.1 of the mean-proxy paper.

    >>> three_proxies()[2]
    tensor([ 6.1232e-17, -1.0000e+00], dtype=torch.float64)
    """
    angles = torch.tensor([0.0, epsilon, -math.pi / 2], dtype=torch.float64)
    return torch.stack((angles.cos(), angles.sin()), 1)


def plot_three_proxies(epsilon: float = 0.1, *, scale: float = 1.0) -> tuple[Any, list[tuple[float, float]]]:
    """Draw the example: the circle with proxies and minimiser, and the loss of the first class along the circle.

    Args:
        epsilon: As in `three_proxies`.
        scale: Σ > 0 of the softmax.

    Returns:
        The figure, and its curve as pairs of an angle in radians and a loss.

    >>> _, curve = plot_three_proxies()
    >>> min(curve, key=lambda pair: pair[1])[0]  # radians
    0.52...
    """
    proxies = three_proxies(epsilon)
    least = class_minimizers(proxies, scale=scale)[0]
    angle = math.atan2(least[1], least[0])
    turn = torch.linspace(-math.pi, math.pi, 721, dtype=torch.float64)
    places = torch.stack((turn.cos(), turn.sin()), 1)
    losses = -(scale * places @ proxies.T).log_softmax(1)[:, 0]

    figure = new_figure(9, 4)
    circle, curve = figure.subplots(1, 2, width_ratios=(1, 1.25))
    circle.plot(*places.T, color=GREY, linewidth=1, zorder=0)
    named = [(proxies[0], TARGET, "$w_1$"), (proxies[1], WRONG, "$w_2$"), (proxies[2], WRONG, "$w_3$")]
    for place, colour, name in [*named, (least, MINIMUM, "$x_1$")]:
        circle.plot(*place, "o", color=colour, markersize=9)
        circle.annotate(name, (1.16 * place).tolist(), color=colour, ha="center", va="center", fontsize=11)
    circle.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
    figure.suptitle(
        f"Three proxies, and where the loss of class 1 is least (ε = {epsilon:g}, σ = {scale:g})", fontsize=10
    )
    curve.plot(turn, losses, color="#333333")
    for place, colour, name in ((0.0, TARGET, "$w_1$"), (epsilon, WRONG, "$w_2$"), (-math.pi / 2, WRONG, "$w_3$")):
        curve.axvline(place, color=colour, linewidth=1, linestyle=":", label=f"{name}: {place:.3f}")
    curve.axvline(angle, color=MINIMUM, linewidth=1.5, label=f"minimum: {angle:.4f}")
    curve.set(xlabel="angle of the embedding, radians", ylabel="softmax loss of class 1")
    curve.spines[["top", "right"]].set_visible(False)
    curve.legend(fontsize=8, frameon=False)  # whose labels are formulas
    return figure, list(zip(turn.tolist(), losses.tolist(), strict=True))


def plot_gaps(
    gaps: Mapping[str, Sequence[float]], bounds: Mapping[str, Mapping[str, float]], *, title: str = ""
) -> Any:
    """Draw squared gaps of classes, sorted, and the mean gap at σ = 1 between its bounds.

    Args:
        gaps: ``‖x_c − ŵ_c‖²`` of the classes at the loss's own scale, by name.
        bounds: For each of the same names, the mean ``gap`` and the numbers of `GapBounds`.
        title: Title of the figure.

    >>> names = ("gap", "lower", "lower_sharp", "lower_printed", "upper", "upper_printed")
    >>> figure = plot_gaps({"a run": [0.1, 0.3]}, {"a run": dict.fromkeys(names, 0.1)})
    >>> len(figure.axes)
    2
    """
    figure = new_figure(10.5, 3.6 + 0.12 * len(gaps))
    figure.suptitle(title, fontsize=10, parse_math=False)
    left, right = figure.subplots(1, 2)
    for place, (name, values) in enumerate(gaps.items()):
        shares = [(rank + 0.5) / len(values) for rank in range(len(values))]
        # Dashed in turn, as curves may lie on each other.
        left.plot(sorted(values), shares, DASHES[place % 4], color=class_colour(place), label=name, linewidth=1.6)
        numbers = bounds[name]
        right.plot([numbers["lower"], numbers["upper"]], [place, place], color="#cccccc", linewidth=4, zorder=0)
        for key, (marker, colour, label) in _MARKS.items():
            right.plot(numbers[key], place, marker, color=colour, markersize=7, markeredgewidth=1.6,
                       label=None if place else label)  # fmt: skip
    left.set(xlabel="squared gap of a class at the loss's scale", ylabel="share of classes below", ylim=(0, 1))
    left.set_xlim(left=0)
    add_legend(left, fontsize=7, loc="lower right")
    right.set_xscale("log")
    right.set_yticks(range(len(bounds)), list(bounds), fontsize=7, parse_math=False)
    right.set(ylim=(len(bounds) - 0.5, -0.5), xlabel="mean squared gap at σ = 1")
    right.axvline(4, color=GREY, linewidth=0.8, linestyle=":")
    handles, _ = right.get_legend_handles_labels()
    add_legend(figure, handles=handles, fontsize=7, ncols=6, loc="outside lower center")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8)
    return figure
