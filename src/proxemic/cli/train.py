"""``proxemic train``."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxemic.cli.report import report_at_the_end
from proxemic.errors import UserError
from proxemic.extras import optional_dependency

if TYPE_CHECKING:
    from proxemic.runs.processes import Processes
    from proxemic.training import TrainingResult


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "train",
        help="train an embedding and evaluate it on unseen classes",
        description="Train by a recipe, choose the epoch on held-out classes, evaluate once on the test classes.",
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
        help="continue this run from its last checkpoint; with --training.epochs N, extend it to N epochs; with "
        "--data.root DIR, its data were moved there",
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
    began = time.monotonic()
    tasks = "WORLD_SIZE" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_STEP_NUM_TASKS"
    if os.environ.get(tasks, "1") == "1":
        result = _run(arguments, flags, began)
    else:
        from proxemic.runs.processes import join_processes

        # First of all, so that one process says what is wrong.
        with join_processes() as processes:
            result = _run(arguments, flags, began, processes)
    if result.metrics:  # of the first process, when the others need not wait any more
        report_at_the_end(result)


def _run(
    arguments: argparse.Namespace, flags: list[str], began: float, processes: "Processes | None" = None
) -> "TrainingResult":
    if arguments.resume is not None:
        alone = not (arguments.recipe or arguments.out or arguments.strict or arguments.no_validation)
        from proxemic.recipes.flags import read_flags

        values = read_flags(flags)
        epochs, root = (values.pop(name, None) for name in ("training.epochs", "data.root"))
        if not alone or values:
            raise UserError(
                "--resume takes everything from the run that it continues: give it alone, with --training.epochs to "
                "extend the run, or with --data.root if its data were moved."
            )
        if epochs is not None and not epochs.isdecimal():
            raise UserError(f"training.epochs is {epochs}, but must be a whole number.")
        return train_and_print(
            None,
            arguments.resume,
            [] if root is None else ["--data.root", root],
            resume=True,
            epochs=None if epochs is None else int(epochs),
            processes=processes,
            began=began,
        )
    from proxemic.recipes import find_recipe

    if arguments.recipe is None:
        given = any(flag.partition("=")[0] == "--data.root" for flag in flags)
        hint = "--recipe own trains on images of your own; or " if given else ""
        raise UserError(f"--recipe is missing: {hint}name one that proxemic recipes list prints, or give a YAML file.")
    find_recipe(arguments.recipe)  # before what takes seconds to import
    if arguments.strict:
        flags = [*flags, "--data.strict", "true"]
    if arguments.no_validation:
        flags = [*flags, "--data.validation_fraction", "0", "--evaluation.select_on", "test"]
    try:
        return train_and_print(arguments.recipe, arguments.out, flags, processes=processes, began=began)
    except UserError as error:
        if arguments.strict and "data.strict" in str(error):
            raise UserError("--strict is for recipes of own images: leave it out here.") from error
        raise


def train_and_print(
    recipe: str | None, out: Path | None, flags: Sequence[str] = (), **options: Any
) -> "TrainingResult":
    """Train as `proxemic.train`, and print what it reports and its metrics."""
    from proxemic.files import new_directory

    if out is None:
        out = new_directory(str(recipe))
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":  # before what takes seconds to import
        print(f"Resuming {out}" if recipe is None else f"Training {recipe}: {out}", flush=True)
    with optional_dependency("train"):
        from tqdm import tqdm

    from proxemic.cli.show import print_metrics
    from proxemic.recipes.flags import read_flags
    from proxemic.training import train

    # Above the progress bar.
    result = train(recipe, out, overrides=read_flags(flags), report=tqdm.write, **options)
    if result.metrics:
        print_metrics(result.metrics)
    return result
