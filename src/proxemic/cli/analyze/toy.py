"""``proxemic analyze toy``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "toy",
        help="embeddings of the training images in two or three dimensions, side by side, with an animation",
        description="Draw the training images' embeddings and the proxies of runs side by side, as figure and, where "
        "the runs kept snapshots, as an animation over the epochs.",
        epilog="Runs to draw: proxemic train --recipe toy/euclidean-softmax, toy/warped-softmax, toy/class-wise, "
        "toy/data-wise. Runs of more than three dimensions are projected to two by PCA.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run")
    parser.add_argument(
        "--diagram",
        action="store_true",
        help="also STEM-diagram: images of the first run, its network, embeddings before and after the training "
        "(mean-proxy paper, figure 2.1)",
    )
    parser.add_argument("--no-animation", dest="animation", action="store_false", help="write the figure alone")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg, .csv and .gif (RUN/toy)")
    return parser
