"""``proxemic reality-check``."""

import argparse
import functools
from pathlib import Path

from proxemic.cli.compare import add_workers
from proxemic.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "reality-check",
        help="losses tuned alike by cross-validation and evaluated on unseen classes, many times",
        description="For each recipe: Bayesian trials, each a class-disjoint cross-validation inside the training "
        "classes; where it has a second phase, as many trials of that phase, each from the best of the first; then "
        "repetitions with the best values, evaluated on the test classes: the folds' models (separated), "
        "their joined embeddings (concatenated), and one model on all training classes (complete).",
        epilog="Every value of a recipe is a flag, for all of them: --data.root DIR, --training.epochs 20, … "
        "The same command with the same --out, or --resume, goes on where it was, after Ctrl-C or a kill.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipes",
        nargs="*",
        metavar="RECIPE",
        help="a recipe's name, a pattern over the names as 'cub/reality-check/*', or a YAML file, one a loss",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the directory (runs/reality-check-DATE-TIME)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the check in this directory")
    parser.add_argument("--trials", type=int, help="a loss (50), and as many for its second phase")
    parser.add_argument(
        "--space",
        dest="spaces",
        action="append",
        metavar="NAME|FILE",
        help="what is searched: a loss's name, or a YAML file (that of the loss); once, or once for each recipe",
    )
    parser.add_argument("--repeats", type=int, help="seeds with the best values (10)")
    parser.add_argument("--folds", type=int, help="parts of the training classes (4)")
    parser.add_argument(
        "--embedding-size", type=int, help="of a fold's model (128); the complete one has FOLDS times as much"
    )
    parser.add_argument("--metric", help="what the trials maximise (map@r)")
    parser.add_argument("--seed", type=int, help="of the search and the folds (0)")
    add_workers(parser)
    parser.add_argument(
        "--against", choices=["paper"], help="also show what the papers print, and what differs in protocol"
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Check, or go on; print the table."""
    if what := ", ".join(arguments.recipes) or arguments.resume:
        print(f"Checking {what}", flush=True)  # before what takes seconds to import
    from proxemic.protocols.reality_check import reality_check
    from proxemic.recipes.flags import read_flags

    names = ("recipes", "trials", "repeats", "folds", "embedding_size", "metric", "seed", "spaces")
    given = {name: value for name in names if (value := getattr(arguments, name)) not in (None, [])}
    if arguments.resume is not None and given:
        raise UserError("--resume takes everything but --workers and --against from the check that it goes on with.")
    result = reality_check(
        **given,
        out=arguments.out,
        overrides=read_flags(flags),
        workers=arguments.workers,
        resume=arguments.resume,
        against=arguments.against,
        report=functools.partial(print, flush=True),
    )
    print(f"Wrote {result.out}/table.md and {result.out}/results.csv\n")
    print(result.table)
    if result.against_paper is not None:
        print(result.against_paper)
