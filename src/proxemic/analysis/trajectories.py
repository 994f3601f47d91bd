"""Plot measures over a training, with a line and its interval for each group of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxemic.analysis.drawing import DASHES, add_legend, class_colour, hide_frame, integer_ticks, new_figure


@dataclass(frozen=True)
class Trajectory:
    """The mean of a measure over a group of runs by epoch, and half the width of its interval (0 for one run)."""

    epochs: Sequence[float]
    mean: Sequence[float]
    half_width: Sequence[float]
    state: str = "finished"
    expected: float | None = None


def plot_trajectories(trajectories: Mapping[str, Trajectory], label: str, *, logarithmic: bool = False) -> Any:
    """Draw a measure by epoch, with a line and a band for the interval per group (warping paper, figure 9)."""
    figure = new_figure(8.5, max(4.0, 0.24 * len(trajectories) + 1))
    axes = figure.subplots()
    lines = []
    for place, (name, line) in enumerate(trajectories.items()):
        colour, dash = class_colour(place), DASHES[place // 10 % len(DASHES)]
        text = name if line.state == "finished" else f"{name} ({line.state})"
        lines += axes.plot(line.epochs, line.mean, f".{dash}", color=colour, linewidth=1.5, label=text, markersize=4)
        low, high = ([m + sign * w for m, w in zip(line.mean, line.half_width, strict=True)] for sign in (-1, 1))
        axes.fill_between(line.epochs, low, high, color=colour, alpha=0.15, linewidth=0)
        if line.state == "unstable":
            axes.plot(line.epochs[-1], line.mean[-1], "X", color=colour, markersize=10, markeredgecolor="white")
        if line.expected is not None:
            axes.axhline(line.expected, color=colour, linewidth=0.9, linestyle=(0, (1, 3)))
    if logarithmic:
        axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel(label, parse_math=False)
    integer_ticks(axes.xaxis)
    hide_frame(axes, grid="both")
    # In the order of the last values.
    lines.sort(key=lambda line: -float(line.get_ydata()[-1]))
    add_legend(axes, handles=lines, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
