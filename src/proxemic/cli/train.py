"""``proxemic train``."""

import argparse
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "train",
        help="train an embedding and judge it on unseen classes",
        description="Train by a recipe, choose the epoch on held-out classes, judge once on the test classes.",
        epilog="Every value of a recipe is a flag: --data.root DIR, --training.epochs 20, --loss.alpha 16, "
        "--loss ProxyAnchorLoss, … See them all with: proxemic recipes show NAME.",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", metavar="NAME|FILE", help="a recipe's name (proxemic recipes list) or a YAML file")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run directory (runs/RECIPE-DATE-TIME)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue this run from its last checkpoint")
    parser.add_argument("--strict", action="store_true", help="an unreadable image is an error, not skipped")
    parser.add_argument(
        "--no-validation",
        action="store_true",
        help="train on all training classes and choose the epoch on the test classes, as many papers do; marked so",
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Train or resume."""
    from proxemic.cli.show import print_metrics
    from proxemic.errors import UserError
    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import read_recipe
    from proxemic.training import RunDirectory, train

    if arguments.resume is not None:
        if flags or arguments.recipe or arguments.out or arguments.strict or arguments.no_validation:
            raise UserError("--resume takes everything from the run it continues: give it alone.")
        run_directory = RunDirectory(arguments.resume)
        run_directory.check_run()
        read = read_recipe(run_directory.recipe)
        print_metrics(train(read.recipe, read.yaml, arguments.resume, resume=True))
        return
    if arguments.recipe is None:
        raise UserError("--recipe is missing: name one that proxemic recipes list prints, or give a YAML file.")
    if arguments.strict:
        flags = [*flags, "--data.strict", "true"]
    if arguments.no_validation:
        flags = [*flags, "--data.validation_fraction", "0", "--evaluation.select_on", "test"]
    read = read_recipe(find_recipe(arguments.recipe), flags)
    out = arguments.out or default_out(arguments.recipe)
    print_metrics(train(read.recipe, read.yaml, out))


def default_out(name: str) -> Path:
    """A new directory under ``runs``."""
    from datetime import datetime

    stem = name.removesuffix(".yaml").removesuffix(".yml").strip("./").replace("/", "-")
    return Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
