"""``proxemic analyze landscape``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "landscape",
        help="where a softmax of distances is least, plain and warped",
        description="Draw the loss of one embedding as a function of its place, and find where it is least. Without "
        "flags: figures 1, 3 and 5 of the warping paper; with flags one landscape; with a RUN that of one class of a "
        "EuclideanSoftmaxLoss or a WarpedSoftmaxLoss.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directory", type=Path, nargs="?", metavar="RUN", help="a finished run")
    parser.add_argument("--class", dest="label", type=int, metavar="INDEX", help="of a RUN: number of the class (0)")
    parser.add_argument(
        "--functions",
        metavar="NAME",
        help="identity, square, square-root, power-P (both of t^P), times-K (f1 = K·t, f2 = t) or warp",
    )
    parser.add_argument("--alpha", type=float, metavar="A", help="distance of the warp's minimum (3)")
    parser.add_argument("--k1", type=float, help="slope of the warp below alpha (0.65)")
    parser.add_argument("--k2", type=float, help="slope of the warp from alpha on (1.5)")
    parser.add_argument("--temperature", type=float, metavar="T", help="factor of the distances (1)")
    parser.add_argument("--classes", type=int, metavar="N", help="proxies, corners of a polygon (2)")
    parser.add_argument("--distance", type=float, metavar="D", help="between neighbouring proxies (4)")
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="begin file names with this (landscape, or RUN/landscape)"
    )
    return parser
