"""``proxemic train``."""

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.training.multiprocess.processes import Processes

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
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue this run from its last checkpoint; with --training.epochs N, extend it to N epochs",
    )
    parser.add_argument("--strict", action="store_true", help="an unreadable image is an error, not skipped")
    parser.add_argument(
        "--no-validation",
        action="store_true",
        help="train on all training classes and choose the epoch on the test classes, as many papers do; marked so",
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Train or resume."""
    tasks = "WORLD_SIZE" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_STEP_NUM_TASKS"
    if os.environ.get(tasks, "1") == "1":
        _run(arguments, flags, None)
        return
    from proxemic.training.multiprocess.processes import join_processes

    # First of all, so that one process says what is wrong.
    with join_processes() as processes:
        _run(arguments, flags, processes)


def _run(arguments: argparse.Namespace, flags: list[str], processes: "Processes | None") -> None:
    began = time.monotonic()
    if arguments.resume is not None:
        alone = not (arguments.recipe or arguments.out or arguments.strict or arguments.no_validation)
        _resume(arguments.resume, alone, flags, processes, began)
        return
    from proxemic.errors import UserError
    from proxemic.recipes import find_recipe

    if arguments.recipe is None:
        own = any(flag.partition("=")[0] == "--data.root" for flag in flags)
        given = "--recipe own trains on images of your own; or " if own else ""
        raise UserError(f"--recipe is missing: {given}name one that proxemic recipes list prints, or give a YAML file.")
    recipe = find_recipe(arguments.recipe)  # before what takes seconds to import

    from proxemic.cli.show import print_metrics
    from proxemic.recipes.reader import read_recipe
    from proxemic.training import train
    from proxemic.training.multiprocess.processes import Processes

    if arguments.strict:
        flags = [*flags, "--data.strict", "true"]
    if arguments.no_validation:
        flags = [*flags, "--data.validation_fraction", "0", "--evaluation.select_on", "test"]
    try:
        read = read_recipe(recipe, flags, own_code=True)
    except UserError as error:
        if arguments.strict and "data.strict" in str(error):
            raise UserError("--strict is for recipes of own images: leave it out here.") from error
        raise
    processes = processes or Processes()
    out = Path(processes.broadcast(str(arguments.out or default_out(arguments.recipe))))
    metrics = train(read.recipe, read.yaml, out, processes=processes, began=began)
    if processes.is_first:
        print_metrics(metrics)


def _resume(path: Path, alone: bool, flags: list[str], processes: "Processes | None", began: float) -> None:
    from proxemic.cli.show import print_metrics
    from proxemic.errors import UserError
    from proxemic.recipes.reader import read_recipe
    from proxemic.training import RunDirectory, train
    from proxemic.training.multiprocess.processes import Processes

    epochs = _epochs(flags)
    if not alone or (flags and epochs is None):
        raise UserError(
            "--resume takes everything from the run that it continues: give it alone, or with --training.epochs to "
            "extend the run."
        )
    run_directory = RunDirectory(path)
    run_directory.check_run()
    read = read_recipe(run_directory.recipe, own_code=True)
    processes = processes or Processes()
    metrics = train(read.recipe, read.yaml, path, resume=True, epochs=epochs, processes=processes, began=began)
    if processes.is_first:
        print_metrics(metrics)


def _epochs(flags: list[str]) -> int | None:
    """The number that alone may be given beside ``--resume``; None where it is not there, or not alone."""
    from proxemic.errors import UserError

    words = [part for flag in flags for part in flag.split("=", 1)]
    if len(words) != 2 or words[0] != "--training.epochs":
        return None
    if not words[1].isdecimal():
        raise UserError(f"training.epochs is {words[1]}, but must be a whole number.")
    return int(words[1])


def default_out(name: str) -> Path:
    """A new directory under ``runs``."""
    from datetime import datetime

    stem = name.removesuffix(".yaml").removesuffix(".yml").strip("./").replace("/", "-")
    return Path("runs") / f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
