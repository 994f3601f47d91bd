"""Searches for the hyper-parameters of every loss, with the same budget, ranges and kinds of first trials.

    python docs/experiments/search.py glyphs-small softmax
    python docs/experiments/search.py omniglot --root DIR softmax
    python docs/experiments/search.py cars-features --root runs/cars/features.parquet softmax
    python docs/experiments/search.py glyphs-small --table docs/experiments

A search that was stopped goes on by the same command. What it has found is kept beside this script, and a search that
is kept is not made again, unless --kept names another folder. --table writes the table, curves and plot of what is
kept.
"""

from argparse import Namespace

import _experiments as shared

from proxemic.studies.tuning import draw_search_curves
from proxemic.tables import Table


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Search for each loss that has no kept search."""
    for name in shared.check_losses(arguments.losses, shared.searched(arguments.dataset)):
        shared.run_search(known, name, arguments.out, arguments.root)


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate finished searches: how many trials, what they found, and what shorter ones would have found."""
    dataset = known.folder.name
    curves = [known.curve(name) for name in shared.SEARCHES if known.recipe(name).exists()]
    shared.check_kept(curves, "finished search", known)
    rows = []
    for curve in curves:
        whole = len(curve.found)
        expected = [
            f"{100 * curve.expected[n - 1]:.2f} ({100 * curve.low[n - 1]:.2f} to {100 * curve.high[n - 1]:.2f})"
            for n in (max(1, whole // 3), whole)
        ]
        full_runs = curve.full_runs[-1] * shared.DATA_SETS[dataset].trial_seeds
        rows.append([curve.name, whole, f"{full_runs:.1f}", f"{100 * curve.found[-1]:.2f}", *expected])
    draw_search_curves(curves, arguments.table / f"curves-{dataset}", "MAP@R")
    columns = ["loss", "trials", "full runs", "best found", "expected of a third of the trials", "expected of all"]
    return {f"searches-{dataset}": Table(columns, rows)}


def main() -> None:
    """Search, or write the table."""
    shared.run_script(__doc__, train, tables, shared.DATA_SETS, "runs/searches")


if __name__ == "__main__":
    main()
