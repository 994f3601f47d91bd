"""``proxemic verify``."""

import argparse
import sys
from functools import partial
from pathlib import Path

from proxemic.errors import UserError

SETS = "lfw,cfp_fp,agedb_30,calfw,cplfw"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify",
        help="evaluate a model by pairs: LFW, CFP-FP, AgeDB-30, CALFW, CPLFW, or your own",
        description="Say of pairs of faces whether they show one person, or of pairs of your own images or vectors "
        "whether they are the same, each of ten folds by the threshold that is best on the other nine.",
        epilog="A run's table is kept in its verification.json, unless --out names another file.",
        allow_abbrev=False,
    )
    parser.add_argument("target", type=Path, metavar="RUN|FILE", help="a run directory or a model.safetensors")
    parser.add_argument("--sets", metavar="NAMES", help=f"which, with commas (default: {SETS})")
    parser.add_argument(
        "--pairs",
        type=Path,
        metavar="TABLE",
        help="pairs of your own, .csv or .parquet: columns first, second, same (true or false) and perhaps fold; first "
        "and second are paths of images, or of vectors what their column path has, or else their row from 0",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR|FILE",
        help="the folder with NAME.bin of each set, or with lfw/ and pairs.txt; with --pairs the folder of the images, "
        "or the file of vectors (default: the run's data.root; for images of --pairs else the table's folder)",
    )
    parser.add_argument("--distance", choices=("cosine", "euclidean"), help="(default: the run's evaluation.distance)")
    parser.add_argument(
        "--no-flip", action="store_true", help="embed a picture alone, not summed with its mirror image's embedding"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that load images (default: the run's batches.workers, or 0)"
    )
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "markdown"), default="table", help="of what is printed"
    )
    parser.add_argument(
        "--against", choices=["paper"], help="also print what the paper prints (Table V), and what differs in protocol"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write this file instead: .json, .csv or .md")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Verify, and print."""
    from proxemic.protocols.runs.targets import is_run
    from proxemic.protocols.runs.verify import verify

    if arguments.against and arguments.target.exists() and not is_run(arguments.target):
        raise UserError(f"--against needs the recipe of a run, but {arguments.target} is none: give its run directory.")
    if arguments.against and arguments.pairs:
        raise UserError("--against is about published sets, but --pairs is a table of your own: leave out one of them.")
    if arguments.against and arguments.format in ("json", "csv"):
        raise UserError(f"--against prints for people, but --format is {arguments.format}: leave out one of them.")
    sets = arguments.sets
    print(f"Verifying {arguments.target}", file=sys.stderr, flush=True)  # before what takes seconds to import
    verification = verify(
        arguments.target,
        sets=None if sets is None else [name.strip() for name in sets.split(",") if name.strip()],
        pairs=arguments.pairs,
        data=arguments.data,
        distance=arguments.distance,
        flip=not arguments.no_flip,
        workers=arguments.workers,
        out=arguments.out,
        report=partial(print, file=sys.stderr),
    )
    print(verification.text(arguments.format))
    if arguments.against:
        print()
        print(verification.against_paper())
