"""Plot a comparison: the mean, interval and seeds of every recipe, and the training curves."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proxemic.analysis.drawing import DASHES, add_legend, class_colour, hide_frame, integer_ticks, new_figure
from proxemic.plots import save_figure
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.comparison.statistics import mean, metric_values
from proxemic.studies.comparison.tables import FOOTNOTES, MARKS
from proxemic.studies.statistics import t_interval


def draw_points(comparison: Comparison) -> None:
    """Write ``points.png`` and ``points.svg``: a row per data set, a column per metric, with all means and seeds."""
    results, datasets = comparison.results(), comparison.datasets()
    shown = {name: comparison.shown_metrics(entries) for name, entries in datasets.items()}
    columns = max(map(len, shown.values()))
    heights = [0.28 * len(entries) + 0.75 for entries in datasets.values()]
    figure = new_figure(2.2 + 2.7 * columns, sum(heights) + 0.45)
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
    _caption(figure, comparison, f"percent; point: mean, bar: 95% interval, dots: {comparison.unit}s")
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
        # Below the bar, so that it does not hide them.
        axes.plot(
            values, [place + 0.25] * len(values), ".", color="#4477aa", alpha=0.4, markersize=6, markeredgewidth=0
        )
        width = 100 * (estimate.half_width or 0.0)
        axes.errorbar(
            100 * estimate.mean, place, xerr=width, fmt="o", color="#224466", markersize=4, capsize=2.5, linewidth=1.2
        )
    axes.set_ylim(len(entries) - 0.4, -0.6)  # the first on top, as in the table
    axes.set_yticks(range(len(entries)), [""] * len(entries))
    hide_frame(axes, grid="both")
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_curves(comparison: Comparison) -> None:
    """Write ``curves.png``: the selection metric by epoch, as a mean with its 95% band per recipe."""
    results, datasets = comparison.results(), comparison.datasets()
    most = max(map(len, datasets.values()))
    figure = new_figure(7.5, len(datasets) * max(3.0, 0.19 * most + 0.6))
    rows = figure.subplots(len(datasets), squeeze=False)[:, 0]
    for axes, (name, entries) in zip(rows, datasets.items(), strict=True):
        metrics = dict.fromkeys(entry.recipe["evaluation"]["metric"] for entry in entries)
        for place, entry in enumerate(entries):
            _curve(axes, results[entry], entry, place)
        axes.set_title(name, fontsize=10, parse_math=False)
        axes.set_xlabel("epoch", fontsize=8)
        axes.set_ylabel(f"{', '.join(metrics)} on held-out classes, %", fontsize=8)
        axes.tick_params(labelsize=8)
        hide_frame(axes, grid="both")
        integer_ticks(axes.xaxis)
        if axes.lines:
            # From the top to the bottom, as the lines end.
            lines = sorted(axes.get_lines(), key=lambda line: -line.get_ydata()[-1])
            add_legend(axes, handles=lines, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        else:
            axes.text(0.5, 0.5, "nothing to show", ha="center", va="center", transform=axes.transAxes)
    _caption(figure, comparison, f"line: mean over {comparison.unit}s, band: 95% interval")
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
    colour, dash = class_colour(place), DASHES[place // 10 % len(DASHES)]
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
