"""``proxemic analyze local-centers``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "local-centers",
        help="whether the proxies of a class found what differs within it, such as typefaces",
        description="What the nearest proxy of its own class tells about a training image's group (a glyph's "
        "typeface), in bits, beside chance; for runs with several proxies per class.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run; of several, also the mean")
    parser.add_argument("--draws", type=int, default=8, help="augmented versions of each image (%(default)s)")
    parser.add_argument("--shuffles", type=int, default=200, help="for the range of chance (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of augmentation and shuffles (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")
    return parser
