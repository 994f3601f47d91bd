"""``proxemic analyze``: one file per subcommand, which declares its flags and calls its function."""

import argparse
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxemic.analyze import Analysis

__all__ = ["SUBCOMMANDS", "add_parser"]

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
    parser.set_defaults(run=lambda *_: parser.print_help(), takes_flags=False)
    subcommands = parser.add_subparsers(dest="action", metavar="ACTION")
    for subcommand in SUBCOMMANDS:
        takes_flags = subcommand is sweep
        subcommand.add_parser(subcommands).set_defaults(run=partial(_run, subcommand.analyze), takes_flags=takes_flags)


def _run(
    analyze: "Callable[[argparse.Namespace, list[str]], Analysis]", arguments: argparse.Namespace, flags: list[str]
) -> None:
    result = analyze(arguments, flags)
    print(result)
    for _, files in groupby(result.written, key=lambda path: path.with_suffix("")):
        print(f"Wrote {', '.join(str(path) for path in files)}")
