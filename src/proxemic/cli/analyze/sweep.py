"""``proxemic analyze sweep``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "sweep",
        help="a metric against one or two values of a recipe, such as a warp's k1 and k2, over seeds",
        description="Train a recipe with one or two values varied and all others as they are, over seeds, and draw a "
        "metric of the test against them: a curve for each --vary, or with --grid a heat map of two. Keys with commas "
        "between them are set to the same value, as alpha in both phases. The same command with the same --out goes on "
        "where it was stopped.",
        epilog="--vary loss.alpha,second_phase.loss.alpha=0,25,50,95, or --vary loss.k1=0.5,0.8,1 --vary loss.k2=1,1.5 "
        "--grid. Every other value of the recipe is a flag: --training.epochs 5. Do not choose a value by this figure: "
        "it shows test classes; proxemic tune chooses on validation classes.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name (proxemic recipes list) or a YAML file")
    parser.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY[,KEY…]=LIST",
        help="what to vary, and its values; repeatable",
    )
    parser.add_argument("--grid", action="store_true", help="every value of one --vary with every value of the other")
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, as 5 (the default) for 0 to 4, or which: 0,1,2")
    parser.add_argument("--metric", default="recall@1", help="of the test (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where runs, figures and tables go")
    return parser
