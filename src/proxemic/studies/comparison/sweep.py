"""One or two values of a recipe varied, all others as they are, over seeds: a curve of a metric, or a heat map."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.studies.comparison.directory import Comparison, Result, computed_metrics
from proxemic.studies.comparison.entries import find_names, read_entry
from proxemic.studies.comparison.run import finish_comparison, plan_comparison
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.comparison.vary import Axis, Sweep, write_points
from proxemic.studies.statistics import Estimate

with optional_dependency("train"):
    from matplotlib.figure import Figure


def plan_sweep(
    recipe: str, sweeps: Sequence[Sweep], seeds: Sequence[int] | None, out: Path, flags: Sequence[str], metric: str
) -> tuple[Comparison, dict[Sweep, list[str]]]:
    """Write a recipe for each point, and plan a comparison of them all in ``out/comparison``.

    Returns the comparison, and the names of the recipes of each sweep's points. Nothing is written before all is
    checked.
    """
    name, *others = find_names([recipe])
    if others:
        raise UserError(f"{recipe} is {1 + len(others)} recipes, but a sweep varies one: name it alone.")
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
    """Train the unfinished runs that `plan_sweep` returned, and return the results of each point by seed."""
    finish_comparison(comparison, workers=workers, report=report)
    comparison.check_finished()
    results = {entry.name: by_seed for entry, by_seed in comparison.results().items()}
    return {sweep: [results[name] for name in files] for sweep, files in names.items()}


def plot_sweep(sweep: Sweep, results: Sequence[Mapping[int, Result]], metric: str, recipe: str) -> Figure:
    """Draw a test metric in percent: over one axis a curve with 95% intervals and all seeds, over two a heat map."""
    means = [estimate for estimate in (mean(by_seed, metric) for by_seed in results) if estimate]
    first, *second = sweep.axes
    figure, axes = _heat_map(first, second[0], means, metric) if second else _curve(first, means, results, metric)
    axes.set_title(recipe, fontsize=9, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curve(
    axis: Axis, means: Sequence[Estimate], results: Sequence[Mapping[int, Result]], metric: str
) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
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
    axes.grid(color="#dddddd", linewidth=0.6)
    return figure, axes


def _heat_map(up: Axis, across: Axis, estimates: Sequence[Estimate], metric: str) -> tuple[Figure, Any]:
    rows, columns = len(up.values), len(across.values)
    figure = Figure(figsize=(1.8 + 0.8 * columns, 1.4 + 0.55 * rows), layout="constrained")
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
    figure.colorbar(image, ax=axes).set_label(f"test {metric}, %")
    return figure, axes
