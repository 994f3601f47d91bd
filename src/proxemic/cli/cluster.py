"""``proxemic cluster``."""

import argparse
import sys
from functools import partial
from pathlib import Path

from proxemic.addresses import without_password
from proxemic.cli.pictures import add_reading, check_reading


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "cluster",
        help="group pictures that have no labels",
        description="Group pictures by their embeddings: into a table, or a folder of links with a folder for each "
        "group. Where pictures have labels, say how well the groups agree with them.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="folders of pictures, .csv or .parquet tables with the column path, pictures, patterns, .txt files with a "
        "path on each line; or one file of vectors (.safetensors, .npy, .parquet)",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="a run, a model.safetensors, or an .onnx file; not needed for embeddings"
    )
    parser.add_argument("--groups", type=int, metavar="N", help="divide all pictures into N groups, by k-means")
    parser.add_argument(
        "--method",
        choices=("kmeans", "agglomerative", "hdbscan"),
        help="k-means, for a number of groups; agglomerative clustering with average linkage, for a threshold and up "
        "to 20,000 pictures; or HDBSCAN, which needs neither (default: kmeans with --groups, agglomerative if a "
        "threshold is given or was learnt by proxemic calibrate, or else hdbscan)",
    )
    parser.add_argument(
        "--min-size", type=int, metavar="N", help="fewest pictures of a group (default: 5, or 1 with --groups)"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="mean distance up to which agglomerative clustering joins groups (default: the one at which, in proxemic "
        "calibrate, groups agreed best with classes)",
    )
    parser.add_argument(
        "--rate",
        type=float,
        help="take the threshold that proxemic calibrate learnt for a false accept rate, which makes smaller groups",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.csv|DIR",
        help="a table with the columns path, cluster (-1: none) and distance to the medoid; or a new folder of links",
    )
    add_reading(parser)
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Cluster, and print."""
    check_reading(arguments)
    what = " ".join(map(without_password, arguments.source))
    print(f"Looking at {what}", file=sys.stderr, flush=True)  # before seconds of imports
    from proxemic.retrieval.clustering import cluster

    names = ("method", "groups", "min_size", "threshold", "rate", "out", "batch_size", "workers")
    options = {name: getattr(arguments, name) for name in names}
    found = cluster(arguments.source, arguments.model, **options, report=partial(print, file=sys.stderr))
    print(found.summary())
