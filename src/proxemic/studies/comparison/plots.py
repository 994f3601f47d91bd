"""Plots of a comparison: every recipe's mean with its interval and seeds, and the training curves."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proxemic.plots import save_figure
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.comparison.statistics import mean, metric_values
from proxemic.studies.comparison.tables import FOOTNOTES, MARKS
from proxemic.studies.statistics import t_interval

DASHES = ("-", "--", ":", "-.")


def draw_points(comparison: Comparison) -> None:
    """Write ``points.png`` and ``.svg``: a row per data set, a column per metric, and each recipe's mean and seeds."""
    results, datasets = comparison.results(), comparison.datasets()
    shown = {name: comparison.shown_metrics(entries) for name, entries in datasets.items()}
    columns = max(map(len, shown.values()))
    heights = [0.28 * len(entries) + 0.75 for entries in datasets.values()]
    figure = Figure(figsize=(2.2 + 2.7 * columns, sum(heights) + 0.45), layout="constrained")
    grid = figure.subplots(len(datasets), columns, squeeze=False, height_ratios=heights)
    for row, (name, entries) in zip(grid, datasets.items(), strict=True):
        for column, axes in enumerate(row):
            if column < len(shown[name]):
                _points(axes, entries, results, shown[name][column])
                axes.set_title(f"{name}: {shown[name][column]}", fontsize=9, parse_math=False)
            else:
                axes.set_visible(False)
        labels = [f"{entry.label}{MARKS[entry.selected_on]}" for entry in entries]
        row[0].set_yticks(range(len(entries)), labels, fontsize=8, parse_math=False)
    _caption(figure, comparison, "percent; point: mean, bar: 95% interval, dots: seeds")
    for kind in ("png", "svg"):
        save_figure(figure, comparison.path / f"points.{kind}", dpi=150)


def _points(axes: Axes, entries: Sequence[Entry], results: Mapping[Entry, Mapping[int, Result]], metric: str) -> None:
    for place, entry in enumerate(entries):
        estimate = mean(results[entry], metric)
        if estimate is None:
            where = axes.get_yaxis_transform()
            axes.text(0.02, place, "not measured", transform=where, va="center", fontsize=7, color="#888888")
            continue
        values = [100 * value for value in metric_values(results[entry], metric).values()]
        # Below the bar, which would hide them.
        axes.plot(
            values, [place + 0.25] * len(values), ".", color="#4477aa", alpha=0.4, markersize=6, markeredgewidth=0
        )
        width = 100 * (estimate.half_width or 0.0)
        axes.errorbar(
            100 * estimate.mean, place, xerr=width, fmt="o", color="#224466", markersize=4, capsize=2.5, linewidth=1.2
        )
    axes.set_ylim(len(entries) - 0.4, -0.6)  # the first on top, as in the table
    axes.set_yticks(range(len(entries)), [""] * len(entries))
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_curves(comparison: Comparison) -> None:
    """Write ``curves.png``: the metric that chose the epoch against the epoch, a mean with its 95% band per recipe."""
    results, datasets = comparison.results(), comparison.datasets()
    most = max(map(len, datasets.values()))
    figure = Figure(figsize=(7.5, len(datasets) * max(3.0, 0.19 * most + 0.6)), layout="constrained")
    rows = figure.subplots(len(datasets), squeeze=False)[:, 0]
    for axes, (name, entries) in zip(rows, datasets.items(), strict=True):
        metrics = dict.fromkeys(entry.recipe["evaluation"]["metric"] for entry in entries)
        for place, entry in enumerate(entries):
            _curve(axes, results[entry], entry, place)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.set_xlabel("epoch", fontsize=8)
        axes.set_ylabel(f"{', '.join(metrics)} on held-out classes, %", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.lines:
            # In the order in which the lines end.
            lines = sorted(axes.get_lines(), key=lambda line: -np.asarray(line.get_ydata())[-1])
            legend = axes.legend(handles=lines, fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
            for text in legend.get_texts():
                text.set_parse_math(False)
        else:
            axes.text(0.5, 0.5, "nothing to show", ha="center", va="center", transform=axes.transAxes)
    _caption(figure, comparison, "line: mean over seeds, band: 95% interval")
    save_figure(figure, comparison.path / "curves.png", dpi=150)


def _curve(axes: Axes, results: Mapping[int, Result], entry: Entry, place: int) -> None:
    metric = entry.recipe["evaluation"]["metric"]
    values: dict[float, list[float]] = {}
    for result in results.values():
        for row in result.history:
            if metric in row:
                values.setdefault(row["epoch"], []).append(100 * row[metric])
    if not values:
        return
    epochs = sorted(values)
    estimates = [t_interval(values[epoch]) for epoch in epochs]
    colour, dash = colormaps["tab10"](place % 10), DASHES[place // 10 % len(DASHES)]
    label = f"{entry.label}{MARKS[entry.selected_on]}"
    marker = "." if len(epochs) == 1 else None
    axes.plot(
        epochs, [estimate.mean for estimate in estimates], dash, color=colour, linewidth=1.3, marker=marker, label=label
    )
    low, high = ([estimate.mean + sign * (estimate.half_width or 0.0) for estimate in estimates] for sign in (-1, 1))
    axes.fill_between(epochs, low, high, color=colour, alpha=0.13, linewidth=0)


def _caption(figure: Figure, comparison: Comparison, text: str) -> None:
    used = {entry.selected_on for entry in comparison.entries}
    figure.supxlabel("\n".join([text, *(note for split, note in FOOTNOTES.items() if split in used)]), fontsize=8)
