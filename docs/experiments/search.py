"""Searches for the hyper-parameters of every loss, with the same budget, ranges and kinds of first trials.

    python docs/experiments/search.py glyphs-small softmax
    python docs/experiments/search.py omniglot --root DIR softmax
    python docs/experiments/search.py cars-features --root runs/cars/features.parquet softmax
    python docs/experiments/search.py glyphs-small --table docs/experiments

A search that was stopped goes on by the same command. What it has found is kept beside this script, and a search that
is kept is not made again, unless --kept names another folder. --table writes the table, curves and plot of what is
kept.
"""

from pathlib import Path

from _experiments import (
    DATA_SETS,
    SEARCHES,
    Kept,
    check_kept,
    check_losses,
    keep_table,
    parse,
    parser_of,
    run_script,
    run_search,
    searched,
)

from proxemic.studies.tuning import draw_search_curves
from proxemic.tables import Table


def main() -> None:
    """Search, or write the table."""
    arguments, known = parse(parser_of(__doc__, DATA_SETS, "runs/searches"))
    if arguments.table is not None:
        write_table(arguments.dataset, known, arguments.table)
        return
    for name in check_losses(arguments.losses, searched(arguments.dataset)):
        run_search(arguments.dataset, name, arguments.out, arguments.root, known)


def write_table(dataset: str, known: Kept, folder: Path) -> None:
    """Tabulate finished searches: how many trials, what they found, and what shorter ones would have found."""
    curves = [known.curve(name) for name in SEARCHES if known.recipe(name).exists()]
    check_kept(curves, "finished search", known)
    rows = []
    for curve in curves:
        whole = len(curve.found)
        expected = [
            f"{100 * curve.expected[n - 1]:.2f} ({100 * curve.low[n - 1]:.2f} to {100 * curve.high[n - 1]:.2f})"
            for n in (max(1, whole // 3), whole)
        ]
        full_runs = curve.full_runs[-1] * DATA_SETS[dataset].trial_seeds
        rows.append([curve.name, whole, f"{full_runs:.1f}", f"{100 * curve.found[-1]:.2f}", *expected])
    columns = ["loss", "trials", "full runs", "best found", "expected of a third of the trials", "expected of all"]
    keep_table(Table(columns, rows), folder / f"searches-{dataset}.csv", f"search.py {dataset}")
    draw_search_curves(curves, folder / f"curves-{dataset}", "MAP@R")


if __name__ == "__main__":
    run_script(main)
