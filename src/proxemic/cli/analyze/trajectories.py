"""``proxemic analyze trajectories``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "trajectories",
        help="what was measured over trainings, such as the distance of embeddings to their proxy (AvgDTP)",
        description="Draw a column of history.csv over the epochs: AvgDTP of the warping paper's figure 9, the gap of "
        "the mean-proxy paper, a metric on held-out classes, the loss. Runs that broke off are drawn and marked.",
        epilog="A recipe has avg_dtp measured by training: {callbacks: [{class_path: "
        "proxemic.training.DistanceToProxy}]}, and the gap by proxemic.training.ProxyGap. Runs of one recipe with "
        "several seeds are a group, with a mean and its 95%% interval.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run, finished or not")
    parser.add_argument("--measure", default="avg_dtp", metavar="COLUMN", help="a column of history.csv (%(default)s)")
    parser.add_argument("--log", dest="logarithmic", action="store_true", help="a logarithmic axis")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg and .csv (the first run's folder)")
    return parser
