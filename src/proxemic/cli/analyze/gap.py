"""``proxemic analyze gap``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "gap",
        help="how far the softmax loss wants embeddings from their proxies, with the bounds of the mean-proxy paper",
        description="Where the softmax loss of each class is least, how far that is from the class's proxy, and the "
        "bounds L(W) and U(W) of the mean-proxy paper, as printed and as they are proved; for trained runs and for the "
        "same losses untrained. Without a run: the paper's example of three proxies.",
        epilog="Runs of one recipe with several seeds are a group, with a mean and its 95%% interval. The gaps are "
        "squared distances between unit vectors, 0 to 4.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a finished run of a softmax loss")
    parser.add_argument(
        "--no-images", dest="images", action="store_false", help="leave out where the training images lie"
    )
    parser.add_argument(
        "--epsilon", type=float, default=0.1, help="angle between two of the three proxies (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="write STEM.png, .svg and .csv (three-proxies, RUN/gap)"
    )
    return parser
