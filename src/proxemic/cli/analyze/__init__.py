"""``proxemic analyze``: one file a subcommand, declared as the commands are."""

import argparse
from functools import partial

from proxemic.cli.analyze import (
    characteristics,
    forces,
    gap,
    gradients,
    landscape,
    local_centers,
    robustness,
    sweep,
    theorems,
    toy,
    trajectories,
)
from proxemic.cli.analyze import map as embedding_map

__all__ = ["SUBCOMMANDS", "add_parser", "run"]

SUBCOMMANDS = (
    characteristics,
    forces,
    gap,
    gradients,
    landscape,
    sweep,
    theorems,
    toy,
    trajectories,
    local_centers,
    robustness,
    embedding_map,
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command and its subcommands."""
    parser = commands.add_parser(
        "analyze",
        help="understand losses and embeddings",
        description="Understand losses and embeddings: every subcommand answers one question.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=partial(run, parser), takes_flags=False)
    subcommands = parser.add_subparsers(dest="action", metavar="ACTION")
    for subcommand in SUBCOMMANDS:
        subcommand.add_parser(subcommands)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, flags: list[str]) -> None:
    """Without a subcommand: say which there are."""
    parser.print_help()
