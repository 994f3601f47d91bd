"""``proxemic tune``."""

import argparse
import functools
from pathlib import Path

from proxemic.errors import UserError

_OPTIONS = (
    *("recipe", "metric", "space", "around", "trials", "budget", "seeds", "first"),
    *("sampler", "pruner", "study", "seed"),
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "tune",
        help="search for a recipe's hyper-parameters on validation classes",
        description="Search for hyper-parameters with Optuna, on classes held out from training; the test classes are "
        "never looked at. The same command with --out in several terminals, or with the same --storage and --study on "
        "several machines, shares the trials; a search that was stopped goes on with --resume.",
        epilog="Every value of the recipe is a flag: --data.root DIR, --training.epochs 20, --loss ProxyAnchorLoss, …",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", metavar="NAME|FILE", help="a recipe's name (proxemic recipes list) or a YAML file")
    parser.add_argument(
        "--space", metavar="NAME|FILE", help="what is searched: a loss's name, or a YAML file (that of the loss)"
    )
    parser.add_argument(
        "--around", metavar="NAME|FILE", help="recipe around whose values the ranges lie that are relative (--recipe)"
    )
    parser.add_argument("--trials", type=int, metavar="N", help="by all processes together (50; all points of a grid)")
    parser.add_argument(
        "--budget",
        type=float,
        metavar="N",
        help="in place of --trials: epochs in all, as many as N complete trials have",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="of each trial, which is worth their mean (1)")
    parser.add_argument(
        "--first", nargs="+", metavar="NAME|FILE", help="recipes whose values the first trials take, after --recipe's"
    )
    parser.add_argument("--sampler", choices=["tpe", "gp", "random", "grid"], help="how trials are chosen (tpe)")
    parser.add_argument("--pruner", choices=["halving", "median", "none"], help="what stops bad trials early (none)")
    parser.add_argument("--metric", metavar="NAME", help="to be maximised (the recipe's evaluation.metric, map@r)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the search's directory (runs/tune-RECIPE-DATE-TIME)")
    parser.add_argument("--storage", metavar="URL", help="an Optuna storage that machines share (DIR/study.db)")
    parser.add_argument("--study", metavar="NAME", help="the search's name in the storage (that of DIR)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes (1) of one thread unless training.threads is set"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the sampler; trainings take the recipe's (0)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with this search")
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Search, or go on."""
    from proxemic.recipes import find_recipe

    given = {name: value for name in _OPTIONS if (value := getattr(arguments, name)) is not None}
    if arguments.resume is not None and given:
        raise UserError("--resume takes everything from the search that it goes on with: give it alone.")
    if arguments.recipe is not None:
        find_recipe(arguments.recipe)
    if what := arguments.recipe or arguments.resume:
        print(f"Searching for the hyper-parameters of {what}", flush=True)  # before what takes seconds to import
    from proxemic.protocols.tuning import tune
    from proxemic.recipes.flags import read_flags

    result = tune(
        **given,
        out=arguments.out,
        overrides=read_flags(flags),
        storage=arguments.storage,
        workers=arguments.workers,
        resume=arguments.resume,
        report=functools.partial(print, flush=True),
    )
    print(
        f"Best: {100 * result.value:.2f} on validation classes, of many trials and so too good to be expected again. "
        f"Train and test it: proxemic train --recipe {result.best_recipe}"
    )
