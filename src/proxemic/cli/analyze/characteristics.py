"""``proxemic analyze characteristics``."""

import argparse
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "characteristics",
        help="what the gradient of each proxy loss takes into account",
        description="Measure for each proxy loss the six characteristics of Table 1 of the multi-proxy anchor paper.",
        epilog="stability: other samples do not change a sample's gradient. manifold: several proxies per class. "
        "similarity: how large scores are counts, not their differences alone. P-P, N-N, P-N: the gradient of a "
        "positive (negative) score depends on other positives (negatives), on scores of the other kind. "
        "(yes): only where the batch holds two samples of a class.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--proxies-per-class", type=int, metavar="K", help="proxies per class, of all losses (each loss's default)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument("--numbers", action="store_true", help="also print how much gradients changed")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write answers and numbers to a table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write answers and numbers as JSON")
    return parser
