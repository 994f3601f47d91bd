"""Vary one or two values of a recipe over several seeds, and draw a curve or a heat map of a metric."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.analysis.drawing import hide_frame, new_figure
from proxemic.errors import UserError
from proxemic.studies.comparison.directory import Comparison, Result, computed_metrics
from proxemic.studies.comparison.entries import find_names, read_entry
from proxemic.studies.comparison.run import finish_comparison, plan_comparison
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.comparison.vary import Axis, Sweep, write_points
from proxemic.studies.statistics import Estimate


def plan_sweep(
    recipe: str, sweeps: Sequence[Sweep], seeds: Sequence[int] | None, out: Path, flags: Sequence[str], metric: str
) -> tuple[Comparison, dict[Sweep, list[str]]]:
    """Write a recipe for each point, and plan a comparison of these recipes in ``out/comparison``.

    Returns the comparison and the names of the recipes by sweep. Everything is checked before anything is written.
    """
    name, *others = find_names([recipe])
    if others:
        raise UserError(f"{recipe} matches {1 + len(others)} recipes, but a sweep varies one: name only one.")
    computed = computed_metrics(read_entry(name, flags, own_code=True))
    if metric not in computed:
        raise UserError(f"--metric is {metric}, but these are computed: {', '.join(computed)}.")
    names = write_points(recipe, sweeps, out, flags)
    files = [file for points in names.values() for file in points]
    return plan_comparison(files, seeds, out / "comparison", metrics=[metric], own_code=True), names


def run_sweep(
    comparison: Comparison,
    names: Mapping[Sweep, Sequence[str]],
    *,
    workers: int = 1,
    report: Callable[[str], object] | None = None,
) -> dict[Sweep, list[dict[int, Result]]]:
    """Train the unfinished runs of `plan_sweep`, and return the results of each point by seed."""
    finish_comparison(comparison, workers=workers, report=report)
    comparison.check_finished()
    results = {entry.name: by_seed for entry, by_seed in comparison.results().items()}
    return {sweep: [results[name] for name in files] for sweep, files in names.items()}


def plot_sweep(sweep: Sweep, results: Sequence[Mapping[int, Result]], metric: str, recipe: str) -> Any:
    """Draw a test metric in percent: a curve with intervals and seeds over one axis, or a heat map over two."""
    means = [estimate for estimate in (mean(by_seed, metric) for by_seed in results) if estimate]
    first, *second = sweep.axes
    figure, axes = _heat_map(first, second[0], means, metric) if second else _curve(first, means, results, metric)
    axes.set_title(recipe, fontsize=9, parse_math=False)
    hide_frame(axes, grid=None if second else "both")
    return figure


def _curve(
    axis: Axis, means: Sequence[Estimate], results: Sequence[Mapping[int, Result]], metric: str
) -> tuple[Any, Any]:
    figure = new_figure(5.5, 3.8)
    axes = figure.subplots()
    try:
        places = [float(value) for value in axis.values]
        is_log = min(places) > 0 and max(places) / min(places) > 8
    except ValueError:
        places, is_log = [float(place) for place in range(len(axis.values))], False
    axes.errorbar(
        places,
        [100 * estimate.mean for estimate in means],
        yerr=[100 * (estimate.half_width or 0.0) for estimate in means],
        fmt="o-", color="#224466", markersize=5, capsize=3, linewidth=1.3,
    )  # fmt: skip
    for place, by_seed in zip(places, results, strict=True):
        values = [100 * result.values["test"][metric] for result in by_seed.values()]
        axes.plot([place] * len(values), values, ".", color="#4477aa", alpha=0.45, markeredgewidth=0)
    if is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, axis.values)
    axes.set_xlabel(" = ".join(axis.keys), parse_math=False)
    axes.set_ylabel(f"test {metric}, %")
    return figure, axes


def _heat_map(up: Axis, across: Axis, estimates: Sequence[Estimate], metric: str) -> tuple[Any, Any]:
    rows, columns = len(up.values), len(across.values)
    figure = new_figure(1.8 + 0.8 * columns, 1.4 + 0.55 * rows)
    axes = figure.subplots()
    means = [[100 * estimates[row * columns + column].mean for column in range(columns)] for row in range(rows)]
    image = axes.imshow(means, cmap="viridis", aspect="auto", origin="lower")
    low, high = min(map(min, means)), max(map(max, means))
    for place, estimate in enumerate(estimates):
        row, column = divmod(place, columns)
        half = estimate.half_width
        text = f"{100 * estimate.mean:.2f}" + ("" if half is None else f"\n±{100 * half:.2f}")
        dark = 100 * estimate.mean < low + 0.6 * (high - low)
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(columns), across.values)
    axes.set_yticks(range(rows), up.values)
    axes.set_xlabel(" = ".join(across.keys), parse_math=False)
    axes.set_ylabel(" = ".join(up.keys), parse_math=False)
    figure.colorbar(image).set_label(f"test {metric}, %")
    return figure, axes
