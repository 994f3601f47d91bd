"""``proxemic analyze theorems``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "theorems",
        help="the papers' propositions, lemmas and theorems as numbers: the bound and what is observed",
        description="Check every proposition, lemma and theorem of the mean-proxy and the warping paper on random "
        "cases, print the case nearest to its bound, and draw figures 11 and 12 of the warping paper. With RUNs: "
        "Propositions 1 and 2 of the mean-proxy paper for their training images.",
        epilog="A statement that does not hold as printed is followed by the one that does, Theorem 2 by what its "
        "proof gives.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a finished run of a loss of cosines")
    parser.add_argument("--draws", type=int, default=100, metavar="N", help="random cases (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (%(default)s)")
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="begin file names with this (theorems, or RUN/theorems)"
    )
    return parser
