"""``proxemic analyze forces``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "forces",
        help="whether the forces on embeddings align with those on their proxies as a training goes on",
        description="Draw, in three dimensions and over a training, where a loss drives embeddings and proxies, and "
        "measure how far both agree: figure 4 of the warping paper. Without a RUN: of embeddings that follow the plain "
        "and the warped softmax freely, and figure 2, which pairs six losses pull together and push apart.",
        epilog="Runs need snapshots: --training.callbacks '[{class_path: proxemic.training.Snapshots}]', as the toy "
        "recipes have them (toy/warped-softmax --model.embedding_size 3).",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a finished run with snapshots")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (forces, or RUN/forces)")
    return parser
