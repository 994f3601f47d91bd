"""``proxemic analyze map``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "map",
        help="a map of a run's embeddings; their hubs, distances, alignment and uniformity",
        description="Draw the embeddings of some classes in two dimensions, by principal components and by t-SNE, and "
        "measure those of all classes: hubness, distances within and between classes, alignment, uniformity.",
        epilog="Writes STEM-pca, STEM-tsne, STEM-distances and STEM-hubs, each as .png, .svg and .csv. Distances are "
        "of all pairs of images; of more than 11,585 images a random sample is compared with all. A t-SNE of 5,000 "
        "images takes a minute.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument(
        "--split", choices=("test", "train", "validation"), default="test", help="which images (%(default)s)"
    )
    parser.add_argument("--method", choices=("pca", "tsne", "both"), default="both", help="of the map (%(default)s)")
    parser.add_argument(
        "--classes", type=int, default=20, metavar="N", help="draw N classes chosen at random; all measures (20)"
    )
    parser.add_argument(
        "--thumbnails", action=argparse.BooleanOptionalAction, default=True, help="images where there is room"
    )
    parser.add_argument("--no-proxies", dest="proxies", action="store_false", help="draw the embeddings alone")
    parser.add_argument("--seed", type=int, default=0, help="of the chosen classes (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin the files' names so (RUN/map)")
    return parser
