"""Tabulate the kept searches of every loss, which had the same budget, ranges and kinds of first trials.

    python docs/experiments/search.py glyphs-small --table

README.md says how the searches were made, and by which commit.
"""

from argparse import Namespace

import _experiments as shared

from proxemic.studies.tuning import draw_search_curves
from proxemic.studies.tuning.curves import SearchCurve
from proxemic.tables import Table


def tables(_: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate finished searches: number of trials, best value, and expected best of shorter searches."""
    dataset = known.dataset
    curves = curves_of(known)
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
    columns = ["loss", "trials", "full runs", "best found", "expected of a third of the trials", "expected of all"]
    return {f"searches-{dataset}": Table(columns, rows)}


def curves_of(known: shared.Kept) -> list[SearchCurve]:
    """Return the curves of finished searches."""
    return [known.curve(name) for name in shared.SEARCHES if known.is_searched(name)]


def draw(known: shared.Kept) -> None:
    """Write the curves and their plot beside this script."""
    draw_search_curves(curves_of(known), shared.HERE / f"curves-{known.dataset}", "MAP@R")


def main() -> None:
    """Write the table, the curves and their plot."""
    shared.run_script(__doc__, None, tables, shared.DATA_SETS, "runs/searches", draw)


if __name__ == "__main__":
    main()
