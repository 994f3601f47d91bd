"""``proxemic analyze gradients``."""

import argparse
from pathlib import Path

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
    parser.add_argument(
        "--losses", type=_names, metavar="A,B", default=PAPER, help="proxy losses, by class name (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("gradients"), metavar="STEM", help="name of the files (%(default)s)"
    )
    return parser


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))
