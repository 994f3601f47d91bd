"""``proxemic analyze gradients``."""

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add_parser", "analyze"]

PAPER = "ProxyAnchorLoss,SoftTripleLoss,MultiProxyAnchorLoss,DataWiseMultiProxyAnchorLoss,AllPairMultiProxyAnchorLoss"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "gradients",
        help="which scores the gradient of one score depends on, as plots",
        description="Measure which class scores enter the gradient of a positive and of a negative class score, in a "
        "batch of three classes and six embeddings, and draw them: figure 1 of the multi-proxy anchor paper.",
        allow_abbrev=False,
    )
    parser.add_argument("--losses", metavar="A,B", default=PAPER, help="proxy losses, by class name (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("gradients"), metavar="STEM", help="name of the files (%(default)s)"
    )
    return parser


def analyze(arguments: argparse.Namespace, flags: list[str]) -> Any:
    """Call the function with what the flags say."""
    from proxemic.analyze import gradients

    losses = list(dict.fromkeys(name.strip() for name in arguments.losses.split(",")))
    return gradients(losses, seed=arguments.seed, out=arguments.out)
