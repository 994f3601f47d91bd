"""``proxemic analyze sweep``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.protocols.comparison.statistics import Estimate

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "sweep",
        help="a metric against one or two values of a recipe, such as a warp's k1 and k2, over seeds",
        description="Train a recipe with one or two values varied and all others as they are, over seeds, and draw a "
        "metric of the test against them: a curve for each --vary, or with --grid a heat map of two. Keys with commas "
        "between them are set to the same value, as alpha in both phases. The same command with the same --out goes on "
        "where it was stopped.",
        epilog="--vary loss.alpha,second_phase.loss.alpha=0,25,50,95, or --vary loss.k1=0.5,0.8,1 --vary loss.k2=1,1.5 "
        "--grid. Every other value of the recipe is a flag: --training.epochs 5. Do not choose a value by this figure: "
        "it shows test classes; proxemic tune chooses on validation classes.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name (proxemic recipes list) or a YAML file")
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY[,KEY…]=LIST",
        help="what to vary, and its values; repeatable",
    )
    parser.add_argument("--grid", action="store_true", help="every value of one --vary with every value of the other")
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, as 5 (the default) for 0 to 4, or which: 0,1,2")
    parser.add_argument("--metric", default="recall@1", help="of the test (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where runs, figures and tables go")
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Train, print, draw."""
    from proxemic.cli.compare import read_seeds
    from proxemic.cli.show import format_table, print_written
    from proxemic.plots import write_figure
    from proxemic.protocols.comparison.statistics import mean
    from proxemic.protocols.comparison.sweep import plan_sweep, plot_sweep, read_sweeps, run_sweep

    sweeps = read_sweeps(arguments.vary, grid=arguments.grid)
    seeds = None if arguments.seeds is None else read_seeds(arguments.seeds)
    metric = arguments.metric
    comparison, files = plan_sweep(arguments.recipe, sweeps, seeds, arguments.out, flags, metric)
    found = run_sweep(comparison, files, workers=arguments.workers, report=print)
    for sweep, results in found.items():
        first, *second = sweep.axes
        cells = [_cell(mean(each, metric)) for each in results]
        columns = len(cells) // len(first.values)
        lines = [[value, *cells[columns * row : columns * (row + 1)]] for row, value in enumerate(first.values)]
        title = f"test {metric}, % (95% interval over {len(results[0])} seeds)"
        if second:
            print(f"{title}: {first.name} down, {second[0].name} across")
        print(format_table([first.name, *(second[0].values if second else [title])], lines))
        rows = [
            [*point.values(), seed, result.values["test"][metric]]
            for point, each in zip(sweep.points(), results, strict=True)
            for seed, result in each.items()
        ]
        figure = plot_sweep(sweep, results, metric, arguments.recipe)
        stem = arguments.out / f"sweep-{sweep.name}"
        print_written(write_figure(figure, stem, [*sweep.keys, "seed", metric], rows))


def _cell(found: "Estimate | None") -> str:
    assert found is not None  # as all runs are finished
    return f"{100 * found.mean:.2f}" + ("" if found.half_width is None else f" ± {100 * found.half_width:.2f}")
