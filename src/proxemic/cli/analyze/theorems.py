"""``proxemic analyze theorems``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxemic.analysis.theorems.observed import Statement

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "theorems",
        help="the papers' propositions, lemmas and theorems as numbers: the bound and what is observed",
        description="Check every proposition, lemma and theorem of the mean-proxy and the warping paper on random "
        "cases, print the case nearest to its bound, and draw figures 11 and 12 of the warping paper. With RUNs: "
        "Propositions 1 and 2 of the mean-proxy paper for their training images.",
        epilog="A statement that does not hold as printed is followed by the one that does, Theorem 2 by what its "
        "proof gives.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run_directories", type=Path, nargs="*", metavar="RUN", help="a finished run of a loss of cosines"
    )
    parser.add_argument("--draws", type=int, default=100, metavar="N", help="random cases (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (%(default)s)")
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="begin file names with this (theorems, or RUN/theorems)"
    )
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Check, print, draw."""
    from proxemic.analysis.theorems.observed import check_theorems
    from proxemic.cli.show import print_written
    from proxemic.files import check_stem, write_csv
    from proxemic.plots import write_figure

    first = (arguments.run_directories or [Path()])[0]
    out = check_stem(arguments.out or first / "theorems")
    if arguments.run_directories:
        found = _of_runs(arguments.run_directories, arguments.seed)
    else:
        found = {"": check_theorems(arguments.draws, seed=arguments.seed)}
    for name, statements in found.items():
        if name:
            print(name)
        _print(statements)
    rows = [
        [name, each.name, each.claim, each.observed, each.bound, each.holds, each.cases]
        for name, statements in found.items()
        for each in statements
    ]
    table = out.with_name(f"{out.name}.csv")
    write_csv(table, ["run", "statement", "claim", "observed", "bound", "holds", "cases"], rows)
    written = [table]
    if not arguments.run_directories:
        from proxemic.analysis.landscape.examples import PAPER_WARP
        from proxemic.analysis.theorems.plots import plot_lemma, plot_proposition

        figure, lines = plot_lemma()
        written += write_figure(figure, out.with_name(f"{out.name}-lemma"), ["angle", "growing", "falling"], lines)
        figure, lines = plot_proposition(PAPER_WARP)
        header = ["place", "f1 - f2", "slope of f1", "slope of f2"]
        written += write_figure(figure, out.with_name(f"{out.name}-proposition"), header, lines)
    print_written(written)


def _print(statements: "Sequence[Statement]") -> None:
    from proxemic.cli.show import format_table

    lines = [
        [each.name, each.claim, f"{each.observed:.4g}", f"{each.bound:.4g}", f"{each.holds} of {each.cases}"]
        for each in statements
    ]
    print(format_table(["statement", "claim", "observed", "bound", "holds in"], lines))


def _of_runs(paths: "Sequence[Path]", seed: int) -> "dict[str, list[Statement]]":
    from proxemic.analysis.theorems.observed import pair_bounds
    from proxemic.errors import UserError
    from proxemic.losses import ProxyLoss
    from proxemic.losses.own import loss_name
    from proxemic.losses.scores.similarity import Cosine
    from proxemic.protocols.runs.finished import find_runs

    found = {}
    for run in find_runs(paths):
        loss = run.loss
        if not (
            isinstance(loss, ProxyLoss) and isinstance(loss.scoring.similarity, Cosine) and loss.proxies_per_class == 1
        ):
            raise UserError(
                f"{run.path} was trained with {loss_name(loss)}, but the propositions are of cosines and one proxy a "
                "class: give a run of such a loss, as NormalizedSoftmaxLoss."
            )
        train = run.splits.train
        found[str(run.path)] = pair_bounds(run.embed(train), train.labels, loss.proxies[:, 0], seed=seed)
    return found
