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

from _kept import Kept
from _searches import DATA_SETS, SEARCHES, check_losses, keep_table, kept, parser_of, run_script, run_search, searched

from proxemic.studies.tuning import draw_search_curves
from proxemic.tables import Table


def main() -> None:
    """Read the flags, and do it."""
    parser = parser_of(__doc__, DATA_SETS, "runs/searches")
    arguments = parser.parse_intermixed_args()
    known = kept(arguments.dataset, arguments.kept)
    if arguments.table is not None:
        write_table(arguments.dataset, known, arguments.table)
        return
    for name in check_losses(arguments.losses, searched(arguments.dataset)):
        print(f"{arguments.dataset}: {name}", flush=True)
        run_search(arguments.dataset, name, arguments.out, arguments.root, known)


def write_table(dataset: str, known: Kept, folder: Path) -> None:
    """The searches that are finished: how many trials, what they found, and what shorter ones would have found."""
    names = [name for name in SEARCHES if known.recipe(name).exists()]
    if not names:
        raise SystemExit(f"{known.folder} holds no finished search: run this command without --table first.")
    curves = [known.curve(name) for name in names]
    rows: list[list[object]] = []
    for curve in curves:
        whole = len(curve.found)
        third = max(1, whole // 3)
        rows.append(
            [
                curve.name,
                whole,
                f"{curve.full_runs[-1] * DATA_SETS[dataset].trial_seeds:.1f}",
                f"{100 * curve.found[-1]:.2f}",
                *(
                    f"{100 * curve.expected[n - 1]:.2f} ({100 * curve.low[n - 1]:.2f} to {100 * curve.high[n - 1]:.2f})"
                    for n in (third, whole)
                ),
            ]
        )
    columns = ["loss", "trials", "full runs", "best found", "expected of a third of the trials", "expected of all"]
    command = f"python docs/experiments/search.py {dataset}"
    keep_table(Table(columns, rows), folder / f"searches-{dataset}.csv", command)
    draw_search_curves(curves, folder / f"curves-{dataset}", "MAP@R")


if __name__ == "__main__":
    run_script(main)
