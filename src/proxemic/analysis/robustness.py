"""Summarise and plot a metric on corrupted images: means and relative drops over severities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from proxemic.analysis.drawing import DASHES, add_legend, hide_frame, new_figure

# Okabe and Ito's colour-blind safe colours, without the yellow, which is too pale for lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vP"  # one less than colours, so that a repeated colour has another marker
COLUMNS = 3


@dataclass(frozen=True, eq=False)
class Robustness:
    """A metric in [0, 1] of the runs of a recipe, on clean and on corrupted images."""

    clean: Float64[Tensor, " runs"]
    values: Float64[Tensor, "runs corruptions severities"]

    @property
    def over_severities(self) -> Float64[Tensor, "runs corruptions"]:
        """The mean over the severities of each corruption."""
        return self.values.mean(2)

    @property
    def relative_drop(self) -> Float64[Tensor, "runs corruptions"]:
        """The lost fraction of the clean value, ``1 − mean over severities / clean``; NaN if the clean value is 0."""
        clean = self.clean.unsqueeze(1)
        return torch.where(clean > 0, 1 - self.over_severities / clean, torch.nan)

    @property
    def curves(self) -> Float64[Tensor, "runs corruptions points"]:
        """The values by severity, from 0 (clean) on."""
        clean = self.clean.view(-1, 1, 1).expand(-1, self.values.shape[1], 1)
        return torch.cat([clean, self.values], 2)


def plot_robustness(
    means: Mapping[str, Float64[Tensor, "corruptions points"]],
    half_widths: Mapping[str, Float64[Tensor, "corruptions points"]],
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    metric: str,
) -> Any:
    """Draw a metric by severity: a panel per corruption, and a line per group with its interval, if any."""
    columns = min(COLUMNS, len(corruptions))
    rows = -(-len(corruptions) // columns)
    width = max(2.7 * columns, 5) + 0.5
    # The number of names that fit side by side, at about 0.075 inches per letter.
    fitting = int(width // (0.075 * max(map(len, means), default=1) + 0.6))
    in_legend = max(1, min(len(means), fitting))
    height = 2.2 * rows + 0.5 + 0.2 * -(-len(means) // in_legend)
    figure = new_figure(width, height)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for axes in panels[len(corruptions) :]:
        axes.set_visible(False)
    for panel, (axes, corruption) in enumerate(zip(panels, corruptions, strict=False)):
        for place, (name, values) in enumerate(means.items()):
            colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
            style = {"color": colour, "marker": MARKERS[place % len(MARKERS)], "markersize": 3.5, "linewidth": 1.3}
            axes.plot([0, *severities], 100 * values[panel], dash, label=name, **style)
            if name in half_widths:
                # Intervals of few seeds may exceed the range of the metric.
                low, high = (100 * (values + sign * half_widths[name])[panel].clamp(0, 1) for sign in (-1, 1))
                axes.fill_between([0, *severities], low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(corruption, fontsize=9)
        axes.set_xticks([0, *severities], ["clean", *map(str, severities)])
        axes.tick_params(labelsize=8)
        hide_frame(axes, grid="both")
        if panel + columns >= len(corruptions):
            axes.set_xlabel("severity", fontsize=8)
    for axes in panels[::columns]:
        axes.set_ylabel(f"{metric}, %", fontsize=8, parse_math=False)
    handles, _ = panels[0].get_legend_handles_labels()
    add_legend(figure, handles=handles, loc="outside lower center", ncols=in_legend)
    return figure
