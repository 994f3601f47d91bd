"""``proxemic analyze characteristics``."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemic.analysis import Characteristics

__all__ = ["add_parser", "run"]

NUMBERS = {
    "other_samples": "batch",
    "shift": "shift",
    "same_class": "P-P in",
    "other_classes": "P-P out",
    "negatives": "N-N",
    "opposite": "P-N",
    "other_embeddings": "beyond",
}
LEGEND = """
The largest change of a gradient, relative to its size. batch: of a sample's, as
other samples change; shift: of any, as all scores fall; P-P: of a positive's, as
positives of its class (in) or of others (out) fall; N-N: of a negative's, as others
fall; P-N: of one sign's, as the other falls; beyond: of an embedding's, as others
change.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "characteristics",
        help="what the gradient of each proxy loss takes into account",
        description="Measure for each proxy loss the six characteristics of Table 1 of the multi-proxy anchor paper.",
        epilog="stability: other samples do not change a sample's gradient. manifold: several proxies a class. "
        "similarity: how large scores are counts, not their differences alone. P-P, N-N, P-N: the gradient of a "
        "positive (negative) score depends on other positives (negatives), on scores of the other kind. "
        "(yes): only where the batch holds two samples of a class.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--proxies-per-class", type=int, metavar="K", help="proxies a class, of all losses (each loss's default)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument("--numbers", action="store_true", help="also print how much gradients changed")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write answers and numbers to a table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write answers and numbers as JSON")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Measure, print, write."""
    from proxemic.analysis import characteristics, every_proxy_loss
    from proxemic.errors import UserError
    from proxemic.files import write_csv, write_json

    if arguments.csv is not None and arguments.csv == arguments.json:
        raise UserError(f"--csv and --json are both {arguments.csv}: give two files.")
    losses = every_proxy_loss(arguments.proxies_per_class, seed=arguments.seed)
    found = {name: characteristics(loss, seed=arguments.seed) for name, loss in losses.items()}
    rows = {name: _row(each) for name, each in found.items()}
    _print(found, numbers=arguments.numbers)
    if arguments.csv is not None:
        header = ["loss", *next(iter(rows.values()))]
        write_csv(arguments.csv, header, [[name, *row.values()] for name, row in rows.items()])
    if arguments.json is not None:
        write_json(arguments.json, rows)


def _row(found: "Characteristics") -> dict[str, Any]:
    from dataclasses import asdict

    return {**found.answers(), "beyond_scores": found.beyond_scores, **asdict(found)}


def _print(found: "Mapping[str, Characteristics]", *, numbers: bool) -> None:
    names = {name: f"{name}*" if each.beyond_scores else name for name, each in found.items()}
    answers = {names[name]: each.answers() for name, each in found.items()}
    _print_table(next(iter(answers.values())), {name: row.values() for name, row in answers.items()})
    if any(each.beyond_scores for each in found.values()):
        print("* Samples also change each other's gradients through embeddings, beside the scores.")
    if numbers:
        print(LEGEND)
        _print_table(
            NUMBERS.values(),
            {names[name]: [_number(getattr(each, key)) for key in NUMBERS] for name, each in found.items()},
        )


def _print_table(columns: Iterable[str], rows: Mapping[str, Iterable[str]]) -> None:
    from proxemic.extras import optional_dependency

    with optional_dependency("train"):
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Column, Table

    # Narrow enough for a terminal of 80 columns.
    table = Table(Column("loss", no_wrap=True), *columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" if value else "0"
