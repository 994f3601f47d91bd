"""A metric against one or two values of a recipe."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proxemic.analyze.results import Analysis, Folder, format_mean
from proxemic.plots import write_figure
from proxemic.recipes.flags import as_flags
from proxemic.studies.comparison.directory import Result
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.comparison.sweep import plan_sweep, plot_sweep, run_sweep
from proxemic.studies.comparison.vary import Sweep, read_sweeps
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
    """Train a recipe with one or two values varied over seeds, and draw a metric of the test against them.

    Draw a curve for each ``vary``, or with ``grid`` a heat map of two: --vary loss.k1=0.5,0.8,1 --vary loss.k2=1,1.5
    --grid. Keys with commas between them are set to the same value, such as loss.alpha,second_phase.loss.alpha=0,25.
    What ``out`` has finished is kept, so that the same call goes on where it was stopped. Every other value of the
    recipe is a flag: --training.epochs 5. Do not choose a value by this figure: it shows test classes; proxemic tune
    chooses on validation classes.

    Args:
        recipe: A recipe's name, or a YAML file.
        vary: What to vary, and its values, as ``loss.alpha=8,16,32``; keys with commas between them are set alike.
        out: The directory for runs, plots and tables.
        grid: Combine every value of the first of two with every value of the second.
        seeds: Seeds of each point; None takes 0 to 4, or those that ``out`` has.
        metric: Metric of the test.
        overrides: Other values of the recipe by dotted key, such as ``{"training.epochs": 5}``.
        workers: Number of runs at a time.
        report: Is given lines on the way; by default they are logged.

    Returns:
        The results of each sweep, point by point and by seed.
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
    cells = [format_mean(mean(by_seed, metric), ".2f", factor=100) for by_seed in points]
    columns = len(cells) // len(first.values)
    lines = [[value, *cells[columns * row : columns * (row + 1)]] for row, value in enumerate(first.values)]
    title = f"test {metric}, % (95% interval over {len(points[0])} seeds)"
    if second:
        return Table([first.name, *second[0].values], lines, f"{title}: {first.name} down, {second[0].name} across")
    return Table([first.name, title], lines)
