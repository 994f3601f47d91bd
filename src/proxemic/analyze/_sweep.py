"""Draw a metric against one or two values of a recipe."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proxemic.analyze.results import Analysis, Folder
from proxemic.plots import write_figure
from proxemic.recipes.flags import as_flags
from proxemic.studies.comparison.directory import Result
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.comparison.sweep import plan_sweep, plot_sweep, run_sweep
from proxemic.studies.comparison.vary import Sweep, read_sweeps
from proxemic.studies.statistics import format_estimate
from proxemic.tables import Table


def sweep(
    recipe: str,
    *,
    vary: Sequence[str],
    out: Folder,
    grid: bool = False,
    seeds: Sequence[int] | None = None,
    metric: str = "recall@1",
    overrides: Mapping[str, object] | None = None,
    workers: int = 1,
    report: Callable[[str], object] | None = None,
) -> Analysis[Mapping[Sweep, Sequence[Mapping[int, Result]]]]:
    """Train a recipe with several seeds for one or two varied values, and draw a test metric against the values.

    Each ``vary`` gives a curve; with ``grid``, two give a heat map: --vary loss.k1=0.5,0.8,1 --vary loss.k2=1,1.5
    --grid. Keys that are separated by commas get the same value: loss.alpha,second_phase.loss.alpha=0,25. Finished runs
    in ``out`` are kept, so that the same call continues a stopped sweep. Other values of the recipe are flags:
    --training.epochs 5. Do not tune by this figure, which shows test classes; proxemic tune uses validation classes.

    Args:
        recipe: Name of a recipe, or a YAML file.
        vary: A key and its values, such as ``loss.alpha=8,16,32``; several keys with commas get the same value.
        out: Directory for runs, plots and tables.
        grid: Combine every value of the first ``vary`` with every value of the second.
        seeds: Seeds of each point; None takes 0 to 4, or the seeds in ``out``.
        metric: Test metric to draw.
        overrides: Other values of the recipe by dotted key, such as ``{"training.epochs": 5}``.
        workers: Number of processes that train.
        report: Called with lines of progress; None logs them.

    Returns:
        The results of each sweep by point and seed.
    """
    sweeps, flags = read_sweeps(vary, grid=grid), as_flags(overrides or {})
    comparison, files = plan_sweep(recipe, sweeps, seeds, Path(out), flags, metric)
    results = run_sweep(comparison, files, workers=workers, report=report)
    tables, written = [], []
    for swept, points in results.items():
        tables.append(_table(swept, points, metric))
        rows = [
            [*point.values(), seed, result.values["test"][metric]]
            for point, by_seed in zip(swept.points(), points, strict=True)
            for seed, result in by_seed.items()
        ]
        figure = plot_sweep(swept, points, metric, recipe)
        written += write_figure(figure, Path(out) / f"sweep-{swept.name}", [*swept.points()[0], "seed", metric], rows)
    return Analysis(summary=tables, written=written, figures=results)


def _table(swept: Sweep, points: Sequence[Mapping[int, Result]], metric: str) -> Table:
    first, *second = swept.axes
    cells = [format_estimate(mean(by_seed, metric)) for by_seed in points]
    columns = len(cells) // len(first.values)
    lines = [[value, *cells[columns * row : columns * (row + 1)]] for row, value in enumerate(first.values)]
    title = f"test {metric}, % (95% interval over {len(points[0])} seeds)"
    if second:
        return Table([first.name, *second[0].values], lines, f"{title}: {first.name} down, {second[0].name} across")
    return Table([first.name, title], lines)
