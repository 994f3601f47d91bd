"""Tabulate trainings on classes with several known centres: does K > 1 help, and does the start of the proxies matter?

    python docs/experiments/centres.py makers --table

Each loss was searched for each K and each start of its proxies with the same budget on validation classes; the best
recipe was trained with several seeds and tested, and the information in its proxies measured. The classes are the
makers of cars, whose centres are models, and the letters of GlyphLetters, whose centres are its characters. README.md
names the commit that makes these cells.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import _experiments as shared
import _kept

from proxemic.studies.statistics import format_estimate, t_interval
from proxemic.tables import MISSING, Table

DATA_SETS = ("makers", "letters")
LOSSES = ("soft-triple", "mpa", "mpa-dw", "mpa-ap", "arcface-sub-centers")
KS = (1, 2, 4, 8, 12)
STARTS = ("drawn", "clusters", "clusters-later", "annealed")
METRICS = ("map@r", "recall@1")


def starts(loss: str, k: int) -> tuple[str, ...]:
    """Return the starts that differ: one proxy has a single start, and sub-centers have no gamma to anneal."""
    if k == 1:
        return ("drawn",)
    return STARTS[:3] if loss == "arcface-sub-centers" else STARTS


Cell = tuple[str, int, str]
"""A loss, K and start."""


def name_of(cell: Cell) -> str:
    """Return the name of a cell's search and runs."""
    loss, k, start = cell
    return f"{loss}-k{k}-{start}"


Rows = Sequence[Mapping[str, Any]]
"""The runs of a cell, one per seed."""


def read_cells(known: shared.Kept) -> dict[Cell, Rows]:
    """Read the rows of finished cells."""
    cells = [(loss, k, start) for loss in LOSSES for k in KS for start in starts(loss, k)]
    return {cell: rows for cell in cells if (rows := _kept.read(known.kept, "centres", known.dataset, name_of(cell)))}


def column(rows: Rows, name: str) -> dict[int, float]:
    """Return the values of a column by seed."""
    return {row["seed"]: row[name] for row in rows}


def by_start(cells: Mapping[Cell, Rows], show: str) -> Table:
    """Tabulate the mean and 95% interval of a column for each loss, K and start."""

    def cell(key: Cell) -> str:
        rows = cells.get(key)
        if rows is None or (show == "bits" and key[1] == 1):
            return MISSING
        if show != "bits":
            return shared.interval(column(rows, show).values())
        beyond = format_estimate(t_interval(shared.paired(column(rows, "bits"), column(rows, "chance"))), factor=1)
        # A mean that rounds to zero has no sign.
        beyond = beyond.removeprefix("-") if beyond.startswith("-0.00") else beyond
        most, used = (fmean(column(rows, name).values()) for name in ("most", "used"))
        return f"{beyond} of {most:.2f} ({used:.1f})"

    keys = [(loss, k) for loss in LOSSES for k in KS if (loss, k, "drawn") in cells]
    return Table(["loss", "K", *STARTS], [[*key, *(cell((*key, start)) for start in STARTS)] for key in keys])


def chosen(cells: Mapping[Cell, Rows], loss: str) -> Cell:
    """Return the cell of several proxies that has the best mean on the validation classes."""
    several = [key for key in cells if key[0] == loss and key[1] > 1]
    return max(several, key=lambda key: fmean(column(cells[key], "validation").values()))


def length(known: shared.Kept, cells: Sequence[Cell]) -> str:
    """Return the length of the searches of cells together, in complete trainings."""
    return f"{sum(known.curve(name_of(cell)).full_runs[-1] for cell in cells):.0f}"


def differences(cells: Mapping[Cell, Rows], known: shared.Kept) -> Table:
    """Tabulate gains in test MAP@R: of the chosen K and start over one proxy, and of other starts over drawn.

    The lengths of the searches that this choice compares are in complete trainings.

    The interval of the former is over the seeds of two searches; that of the latter is over K, each with its own
    searches, of the means over seeds.
    """

    def gains(cell: Cell, other: Cell) -> list[float]:
        return shared.paired(*(column(cells[key], "map@r") for key in (cell, other)))

    lines = []
    for loss in LOSSES:
        several, one = [key for key in cells if key[0] == loss and key[1] > 1], (loss, 1, "drawn")
        if not several or one not in cells:
            continue
        best = chosen(cells, loss)
        drawn = {key: (loss, key[1], "drawn") for key in several if (loss, key[1], "drawn") in cells}
        by_k = [
            [fmean(gains(key, drawn[key])) for key in several if key[2] == start and key in drawn]
            for start in STARTS[1:]
        ]
        of_starts = (shared.interval(values) if values else MISSING for values in by_k)
        lengths = length(known, [one]), length(known, several)
        lines.append([loss, best[1], best[2], shared.interval(gains(best, one)), *lengths, *of_starts])
    columns = ["loss", "best K", "and start", "best − one proxy", "full runs, one proxy", "full runs, several"]
    columns += [f"{start} − drawn" for start in STARTS[1:]]
    return Table(columns, lines)


def tables(_: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate MAP@R, what the proxies found, and the differences."""
    cells = read_cells(known)
    shared.check_kept(cells, "cell", known)
    made = {"map": by_start(cells, "map@r"), "bits": by_start(cells, "bits"), "differences": differences(cells, known)}
    return {f"centres-{known.dataset}-{name}": table for name, table in made.items()}


def main() -> None:
    """Write the tables."""
    shared.run_script(__doc__, None, tables, DATA_SETS, "runs/centres")


if __name__ == "__main__":
    main()
