"""What commands on pictures and galleries have in common."""

import argparse
import sys
from collections.abc import Mapping

from proxemic.errors import UserError

SOURCES = (
    "folders, .csv or .parquet tables, pictures, patterns as 'photos/**/*.jpg', .txt files with a path on each line; "
    "or files of vectors: .npy, .safetensors, .parquet with a column embedding"
)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of commands that embed pictures."""
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="pictures at once (default: 64)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that read pictures (default: 0)")


def data_root(flags: list[str]) -> str | None:
    """Return the value of ``--data.root``, the only flag of a recipe that a command takes; None if it is not given."""
    from proxemic.recipes.flags import read_flags

    given = dict(read_flags(flags)) if flags else {}
    root = given.pop("data.root", None)
    if given:
        raise UserError(f"--{next(iter(given))} is not known here: only --data.root is, of the data.")
    return root


def add_where(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare conditions."""
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help=f"{what}, as label=shoe; of a column that is given several times any value will do, but all columns must "
        "be right; label= means those without a label",
    )


def check_reading(arguments: argparse.Namespace) -> None:
    """Refuse batches and workers that cannot be."""
    if arguments.batch_size < 1:
        raise UserError(f"--batch-size is {arguments.batch_size}, but must be 1 or more.")
    if arguments.workers < 0:
        raise UserError(f"--workers is {arguments.workers}, but must be 0 or more.")


def say(text: str) -> None:
    """Print a note."""
    print(text, file=sys.stderr, flush=True)


def say_unreadable(unreadable: Mapping[str, str], one: str, many: str) -> None:
    """Name the first few of what could not be read."""
    if unreadable:
        named = "; ".join(f"{name} ({why})" for name, why in [*unreadable.items()][:3]) + "; ..." * (
            len(unreadable) > 3
        )
        say(f"{len(unreadable):,} {one if len(unreadable) == 1 else many} cannot be read: {named}")
