"""``proxemic analyze sweep``."""

import argparse
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "sweep",
        help="a metric against one value of a recipe, such as a warp's alpha or the number of proxies, over seeds",
        description="Train a recipe with one value varied and all others as they are, over seeds, and draw a metric of "
        "the test against the value. The same command with the same --out goes on where it was stopped.",
        epilog="--vary second_phase.loss.alpha=0.6,1.2,2.4 --vary loss.proxies_per_class=1,2,4,8. Every other value of "
        "the recipe is a flag: --training.epochs 5. Do not choose a value by this figure: it shows test classes; "
        "proxemic tune chooses on validation classes.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name (proxemic recipes list) or a YAML file")
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=LIST",
        help="what to vary, and its values; repeatable",
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, as 5 (the default) for 0 to 4, or which: 0,1,2")
    parser.add_argument("--metric", default="recall@1", help="of the test (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where runs, figures and tables go")
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Train, print, draw."""
    from proxemic.cli.compare import read_seeds
    from proxemic.cli.show import format_table, print_written
    from proxemic.errors import UserError
    from proxemic.figures import write_figure
    from proxemic.protocols.comparison_statistics import mean
    from proxemic.protocols.sweep import Sweep, plan_sweep, plot_sweep, run_sweep

    sweeps = [Sweep.parse(text) for text in arguments.vary]
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) < len(keys):
        raise UserError(f"--vary names {', '.join(keys)}: vary each once, with all of its values.")
    seeds = None if arguments.seeds is None else read_seeds(arguments.seeds)
    metric = arguments.metric
    comparison, files = plan_sweep(arguments.recipe, sweeps, seeds, arguments.out, flags, metric)
    found = run_sweep(comparison, files, metric, workers=arguments.workers)
    for sweep, results in found.items():
        means = [mean(each, metric) for each in results]
        lines = [
            [value, f"{100 * each.mean:.2f}" + ("" if each.half_width is None else f" ± {100 * each.half_width:.2f}")]
            for value, each in zip(sweep.values, means, strict=True)
            if each is not None
        ]
        print(format_table([sweep.key, f"test {metric}, % (95% interval over {len(results[0])} seeds)"], lines))
        rows = [
            [value, seed, result.values["test"][metric]]
            for value, each in zip(sweep.values, results, strict=True)
            for seed, result in each.items()
        ]
        figure = plot_sweep(sweep, results, metric, arguments.recipe)
        print_written(write_figure(figure, arguments.out / f"sweep-{sweep.key}", [sweep.key, "seed", metric], rows))
