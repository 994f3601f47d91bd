"""Searches for the hyper-parameters of every loss, with the same budget, ranges and kinds of first trials.

    python docs/experiments/search.py glyphs-small softmax
    python docs/experiments/search.py omniglot --root DIR softmax
    python docs/experiments/search.py cars-features --root runs/cars/features.parquet softmax
    python docs/experiments/search.py glyphs-small --table docs/experiments

A search that was stopped goes on by the same command. What it has found is kept beside this script, and a search that
is kept is not made again, unless --kept names another folder. --table writes the table, curves and plot of what is
kept.
"""

import argparse
from pathlib import Path

from _kept import Kept
from _searches import DATA_SETS, HERE, SEARCHES, check_losses, keep_table, kept, run_script, run_search, searched

from proxemic.protocols.tuning import draw_search_curves
from proxemic.tables import Table


def main() -> None:
    """Read the flags, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=DATA_SETS)
    parser.add_argument("losses", nargs="*", metavar="LOSS", help=f"of {', '.join(SEARCHES)} (all)")
    parser.add_argument("--out", type=Path, default=Path("runs/searches"), metavar="DIR", help="for all searches")
    parser.add_argument("--root", type=Path, metavar="DIR", help="of Omniglot's images, or the file of cars.py")
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished ones are kept")
    parser.add_argument("--table", type=Path, metavar="DIR", help="search nothing; write what there is to this folder")
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
