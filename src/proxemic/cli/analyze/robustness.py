"""``proxemic analyze robustness``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "robustness",
        help="what is left of a metric when the test images are corrupted",
        description="Evaluate finished runs on their test images under noise, dropped pixels, distortions and blur, as "
        "Table IV of the warping paper, but in five severities. Runs of one image size see the very same corrupted "
        "images; runs that differ in their seed alone are one group, with a 95%% interval of its mean.",
        epilog="Severity 3 is about what the paper used, 1 mild, 5 strong. Grey images have no hue: that corruption "
        "is left out.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run")
    parser.add_argument(
        "--corruptions", type=lambda text: text.split(","), metavar="A,B", help="which, as shear,dropout (all nine)"
    )
    parser.add_argument(
        "--severities", type=_levels, default="1,2,3,4,5", metavar="1,3", help="which, of 1 to 5 (%(default)s)"
    )
    parser.add_argument("--metric", default="recall@1", help="that the runs' evaluation computes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions (%(default)s)")
    parser.add_argument(
        "--against", choices=["paper"], help="also show what the paper prints (Table IV), and what differs in protocol"
    )
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg and .csv (RUN/robustness)")
    return parser


def _levels(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not of 1 (mild) to 5 (strong), with commas, as 1,3,5")
    return [int(word) for word in words]
