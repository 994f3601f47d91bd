"""Classes of several known centres: does K > 1 help, do proxies find the centres, and which start matters?

    python docs/experiments/centres.py makers --features runs/cars/features.parquet
    python docs/experiments/centres.py bodies --features runs/cars/features.parquet
    python docs/experiments/centres.py letters

Each loss is searched at each K with each start of its proxies, with the same budget, on validation classes; the best
recipe is trained with several seeds, tested, and asked what its proxies have found. Cells that are finished are kept
beside this script, and the same command goes on where it was stopped; --loss takes some losses alone, so that several
processes share the work. --table trains nothing, and writes the tables of what is kept.

The classes are the makers of cars, whose centres are models; their bodies, on cars of other makers; and the letters of
GlyphLetters, whose centres are its characters. docs/experiments/cars.py makes the file for --features.
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from _experiments import (
    AROUND,
    HERE,
    LEAN,
    Kept,
    check_kept,
    interval,
    keep_table,
    paired,
    read_features,
    read_rows,
    run_script,
)

import proxemic
from proxemic.data import derive_seed
from proxemic.files import write_atomically, write_csv
from proxemic.studies.statistics import format_estimate, t_interval
from proxemic.tables import MISSING, Table
from proxemic.training import RunDirectory

LOSSES = ("soft-triple", "mpa", "mpa-dw", "mpa-ap", "arcface-sub-centers")
KS = (1, 2, 4, 8, 12)
STARTS = ("drawn", "clusters", "clusters-later", "annealed")
METRICS = ("map@r", "recall@1")
COLUMNS = ("loss", "k", "start", "seed", "validation", *METRICS, "bits", "chance", "most", "used", "cosine", "seconds")
MAKERS_OF_TWO_WORDS = ("AM General", "Aston Martin", "Land Rover")
BODIES = ("SUV", "Sedan", "Coupe", "Convertible", "Hatchback", "Wagon", "Minivan", "Van", "Cab", "SuperCab")


@dataclass(frozen=True)
class Experiment:
    """What the cells of one data set have in common; ``center`` is the attribute that proxies are to find."""

    recipes: str
    center: str
    epochs: int
    budget: float
    seeds: int
    values: Mapping[str, object] = field(default_factory=dict)

    def start(self, name: str) -> dict[str, object]:
        """The values of a recipe that make a start."""
        later = self.epochs // 4
        return {
            "drawn": {},
            "clusters": {"training.start_proxies": "k_means"},
            "clusters-later": {"training.start_proxies": "k_means", "training.spread_after": later},
            "annealed": {"training.anneal_gamma.begin": 2.0, "training.anneal_gamma.epochs": self.epochs // 2},
        }[name]


# The classes are few, so that 128 dimensions suffice.
_CARS = Experiment("cars-features", "subclass", 20, budget=5, seeds=4, values={"model.embedding_size": 128})
EXPERIMENTS = {
    "makers": _CARS,
    "bodies": replace(_CARS, values={**_CARS.values, "data.hold_out": "images"}),
    "letters": Experiment("glyph-letters", "character", 8, budget=4, seeds=3),
}


def starts(loss: str, k: int) -> tuple[str, ...]:
    """The starts that differ: of one proxy none does, and the largest similarity has no softness to anneal."""
    if k == 1:
        return ("drawn",)
    return STARTS[:3] if loss == "arcface-sub-centers" else STARTS


def maker_of(name: str) -> str:
    """The maker that the name of a class of Cars196 begins with.

    >>> maker_of("Aston Martin Virage Coupe 2012"), maker_of("smart fortwo Convertible 2012")
    ('Aston Martin', 'smart')
    """
    return next((maker for maker in MAKERS_OF_TWO_WORDS if name.startswith(maker)), name.split()[0])


def body_of(name: str) -> str | None:
    """The last word of the name that is a body, pickups as Cab; None where it has none.

    >>> body_of("Ram C/V Cargo Van Minivan 2012"), body_of("Ford Ranger SuperCab 2011"), body_of("Acura TL Type-S 2008")
    ('Minivan', 'Cab', None)
    """
    found = [word for word in name.split() if word in BODIES]
    return found[-1].replace("SuperCab", "Cab") if found else None


def split_of_makers(models: Sequence[str]) -> dict[str, str]:
    """The split of each maker: by the number of models, by turns for training (every third: validation) and test."""
    count = {maker: sum(maker_of(model) == maker for model in models) for maker in map(maker_of, models)}
    order = sorted(count, key=lambda maker: (-count[maker], maker))
    sides = ("train", "test", "train", "test", "validation", "test")
    return {maker: sides[place % len(sides)] for place, maker in enumerate(order)}


def join_classes(features: Path, by: str, out: Path) -> str:
    """Write the features with makers or bodies as classes, and the models as their subclasses; return a sentence."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = read_features(features, ["embedding", "label", "path"]).to_pandas()
    frame = frame.rename(columns={"label": "subclass"})
    frame["label"] = frame["subclass"].map(maker_of if by == "makers" else body_of)
    frame["split"] = frame["subclass"].map(maker_of).map(split_of_makers(sorted({*frame["subclass"]})))
    without, frame = frame[frame["label"].isna()], frame[frame["label"].notna()]
    with write_atomically(out) as temporary:
        pq.write_table(pa.Table.from_pandas(frame), temporary)
    parts = []
    for split in ("train", "validation", "test"):
        rows = frame[frame["split"] == split]
        centres, classes = rows["subclass"].nunique(), rows["label"].nunique()
        parts.append(f"{split}: {len(rows):,} photographs of {centres} models in {classes} classes")
    missing = without["subclass"].nunique()
    left_out = f"; {missing} models whose names say no body are left out" if missing else ""
    return f"{by}: {'; '.join(parts)}{left_out}."


Cell = tuple[str, int, str]
"""A loss, K and start."""


def name_of(cell: Cell) -> str:
    """The name of its files."""
    loss, k, start = cell
    return f"{loss}-k{k}-{start}"


def rows_of(known: Kept, cell: Cell) -> Path:
    """Return the path of a cell's results, one row per seed; the file exists if the cell is finished."""
    return known.folder / "runs" / f"{name_of(cell)}.csv"


def run_cell(experiment: Experiment, cell: Cell, data: dict[str, object], out: Path, known: Kept) -> None:
    """Search, train the best trial with each seed, and save the results."""
    (loss, k, start), folder = cell, out / name_of(cell)
    if rows_of(known, cell).exists():
        return
    values = {
        "loss.proxies_per_class": k,
        "training.epochs": experiment.epochs,
        "evaluation.start": False,
        **LEAN,
        **experiment.values,
        **data,
        **experiment.start(start),
    }
    if k == 1 and loss != "arcface-sub-centers":
        values |= {"loss.gamma": 0.1, "loss.center_weight": 0.0}  # which change nothing
    # The best of one proxy, of the next smaller K with the same start, and of the same K with drawn proxies.
    smaller = max((smaller for smaller in KS if smaller < k), default=k)
    siblings = dict.fromkeys([(loss, 1, "drawn"), (loss, smaller, start), (loss, k, "drawn")])
    paths = [known.recipe(name_of(sibling)) for sibling in siblings if sibling != cell]
    proxemic.tune(
        f"{experiment.recipes}/{loss}",
        out=folder / "search",
        overrides=values,
        around=AROUND,
        budget=experiment.budget,
        first=[path for path in paths if path.exists()],
        pruner="halving",
        seed=derive_seed(LOSSES.index(loss), k, len(start)) % 2**31,
        report=lambda line: print(f"{loss} K={k} {start}: {line}", flush=True),
    )
    rows = []
    for seed in range(experiment.seeds):
        run = RunDirectory(folder / f"seed-{seed}")
        if run.recipe.exists():
            result = proxemic.train(out=run.path, resume=True, progress=False)
        else:
            shutil.rmtree(run.path, ignore_errors=True)
            recipe = folder / "search" / "best.yaml"
            result = proxemic.train(recipe, run.path, overrides={"seed": seed}, threads=1, progress=False)
        rows.append(row_of(experiment, run, result.metrics, cell, seed))
    known.keep_search(name_of(cell), folder / "search")
    write_csv(rows_of(known, cell), COLUMNS, [[row.get(name, "") for name in COLUMNS] for row in rows])
    for seed in range(experiment.seeds):
        RunDirectory(folder / f"seed-{seed}").drop_weights()
    shutil.rmtree(folder / "search" / "trials", ignore_errors=True)


def row_of(
    experiment: Experiment, run: RunDirectory, metrics: Mapping[str, Any], cell: Cell, seed: int
) -> dict[str, Any]:
    """What a run reached on the test classes, and what its proxies tell about the centres of training images."""
    loss, k, start = cell
    row: dict[str, Any] = {"loss": loss, "k": k, "start": start, "seed": seed}
    row |= {name: metrics["test"][name] for name in METRICS} | {"validation": metrics["validation"]["map@r"]}
    row["seconds"] = round(sum(epoch["seconds"] for epoch in run.read_history()), 1)
    if k > 1:
        ((centers, proxies),) = proxemic.analyze.local_centers([run.path], draws=2, shuffles=50).figures.values()
        found = centers[experiment.center]
        row |= {"bits": found.information, "chance": found.chance, "most": found.most}
        row |= {"used": proxies["used"], "cosine": proxies["cosine"]}
    return row


def read_cells(known: Kept) -> dict[Cell, list[dict[str, str]]]:
    """Read the rows of the cells that are finished, one for each seed."""
    cells = [(loss, k, start) for loss in LOSSES for k in KS for start in starts(loss, k)]
    return {cell: rows for cell in cells if (rows := read_rows(rows_of(known, cell)))}


def column(rows: Sequence[Mapping[str, str]], name: str) -> dict[int, float]:
    """Return the values of a column by seed."""
    return {int(row["seed"]): float(row[name]) for row in rows}


def by_start(cells: Mapping[Cell, Sequence[Mapping[str, str]]], show: str) -> Table:
    """Tabulate a figure of each loss, K and start: its mean and 95% interval over the seeds."""

    def cell(key: Cell) -> str:
        rows = cells.get(key)
        if rows is None or (show == "bits" and key[1] == 1):
            return MISSING
        if show != "bits":
            return interval(column(rows, show).values())
        beyond = format_estimate(t_interval(paired(column(rows, "bits"), column(rows, "chance"))), factor=1)
        most, used = (fmean(column(rows, name).values()) for name in ("most", "used"))
        return f"{beyond} of {most:.2f} ({used:.1f})"

    keys = [(loss, k) for loss in LOSSES for k in KS if (loss, k, "drawn") in cells]
    return Table(["loss", "K", *STARTS], [[*key, *(cell((*key, start)) for start in STARTS)] for key in keys])


def differences(cells: Mapping[Cell, Sequence[Mapping[str, str]]]) -> Table:
    """Tabulate what the K and start that validation chooses gain over one proxy in test MAP@R, and starts over drawn.

    Paired by seed; of the starts, over all K > 1.
    """

    def difference(*pairs: tuple[Cell, Cell]) -> str:
        values = [
            gain for cell, other in pairs for gain in paired(*(column(cells[key], "map@r") for key in (cell, other)))
        ]
        return interval(values) if values else MISSING

    lines = []
    for loss in LOSSES:
        several, one = [key for key in cells if key[0] == loss and key[1] > 1], (loss, 1, "drawn")
        if not several or one not in cells:
            continue
        best = max(several, key=lambda key: fmean(column(cells[key], "validation").values()))
        drawn = {key: (loss, key[1], "drawn") for key in several if (loss, key[1], "drawn") in cells}
        gains = [
            difference(*((key, drawn[key]) for key in several if key[2] == start and key in drawn))
            for start in STARTS[1:]
        ]
        lines.append([loss, best[1], best[2], difference((best, one)), *gains])
    columns = ["loss", "best K", "and start", "best − one proxy", *(f"{start} − drawn" for start in STARTS[1:])]
    return Table(columns, lines)


def main() -> None:
    """Make the cells that are not kept, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=EXPERIMENTS)
    parser.add_argument("--features", type=Path, metavar="FILE", help="features.parquet of docs/experiments/cars.py")
    parser.add_argument("--out", type=Path, default=Path("runs/centres"), metavar="DIR", help="for the runs")
    parser.add_argument("--loss", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished ones are kept")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing; write the tables of what is kept")
    arguments = parser.parse_args()
    known = Kept(arguments.kept / arguments.data)
    if arguments.table is not None:
        write_tables(known, arguments.table)
        return
    experiment, out = EXPERIMENTS[arguments.data], arguments.out / arguments.data
    proxemic.keep_freed_memory()
    data: dict[str, object] = {}
    if arguments.data != "letters":
        joined = (out / f"{arguments.data}.parquet").resolve()
        if not joined.exists():
            if arguments.features is None:
                parser.error("--features is missing: docs/experiments/cars.py makes the file")
            print(join_classes(arguments.features, arguments.data, joined), flush=True)
        data["data.root"] = str(joined)
    for loss in arguments.loss:
        for k in KS:
            for start in starts(loss, k):
                run_cell(experiment, (loss, k, start), data, out, known)


def write_tables(known: Kept, folder: Path) -> None:
    """Write MAP@R, what the proxies found, and the differences."""
    data, cells = known.folder.name, read_cells(known)
    check_kept(cells, "cell", known)
    tables = {"map": by_start(cells, "map@r"), "bits": by_start(cells, "bits"), "differences": differences(cells)}
    for name, table in tables.items():
        keep_table(table, folder / f"centres-{data}-{name}.csv", f"centres.py {data}")


if __name__ == "__main__":
    run_script(main)
