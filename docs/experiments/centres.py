"""Train on classes with several known centres: does K > 1 help, do proxies find the centres, and does the start matter?

    python docs/experiments/centres.py makers --root runs/cars/features.parquet
    python docs/experiments/centres.py letters
    python docs/experiments/centres.py makers --table docs/experiments

Each loss is searched for each K and each start of its proxies with the same budget on validation classes; the best
recipe is trained with several seeds and tested, and the information in its proxies is measured. Finished cells are kept
beside this script, and the same command continues. Several processes share the work if each is given other losses.
--table trains nothing, and writes the tables of the kept cells.

The classes are the makers of cars, whose centres are models, and the letters of GlyphLetters, whose centres are its
characters. docs/experiments/cars.py makes the file for --root.
"""

import shutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import _experiments as shared

import proxemic
from proxemic.data import derive_seed
from proxemic.errors import UserError
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


@dataclass(frozen=True)
class Experiment:
    """The common settings of a data set's cells; ``center`` is the attribute that proxies should find."""

    recipes: str
    center: str
    epochs: int
    budget: float
    seeds: int
    values: Mapping[str, object] = field(default_factory=dict)

    def start(self, name: str) -> dict[str, object]:
        """Return the overrides of a recipe for a start of the proxies."""
        later = self.epochs // 4
        return {
            "drawn": {},
            "clusters": {"training.start_proxies": "k_means"},
            "clusters-later": {"training.start_proxies": "k_means", "training.spread_after": later},
            "annealed": {"training.anneal_gamma.begin": 2.0, "training.anneal_gamma.epochs": self.epochs // 2},
        }[name]


EXPERIMENTS = {
    # The classes are few, so that 128 dimensions suffice.
    "makers": Experiment("cars-features", "subclass", 20, budget=5, seeds=4, values={"model.embedding_size": 128}),
    "letters": Experiment("glyph-letters", "character", 8, budget=4, seeds=3),
}


def starts(loss: str, k: int) -> tuple[str, ...]:
    """Return the starts that differ: one proxy has a single start, and sub-centers have no gamma to anneal."""
    if k == 1:
        return ("drawn",)
    return STARTS[:3] if loss == "arcface-sub-centers" else STARTS


def maker_of(name: str) -> str:
    """Return the maker, with which the name of a class of Cars196 begins.

    >>> maker_of("Aston Martin Virage Coupe 2012"), maker_of("smart fortwo Convertible 2012")
    ('Aston Martin', 'smart')
    """
    return next((maker for maker in MAKERS_OF_TWO_WORDS if name.startswith(maker)), name.split()[0])


def split_of_makers(models: Sequence[str]) -> dict[str, str]:
    """Assign makers, sorted by number of models, to training and test in turn; every third of training validates."""
    count = {maker: sum(maker_of(model) == maker for model in models) for maker in map(maker_of, models)}
    order = sorted(count, key=lambda maker: (-count[maker], maker))
    sides = ("train", "test", "train", "test", "validation", "test")
    return {maker: sides[place % len(sides)] for place, maker in enumerate(order)}


def join_classes(features: Path, out: Path) -> str:
    """Write the features with makers as classes and models as subclasses; return a summary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = shared.read_features(features, ["embedding", "label", "path"]).to_pandas()
    frame = frame.rename(columns={"label": "subclass"})
    frame["label"] = frame["subclass"].map(maker_of)
    frame["split"] = frame["label"].map(split_of_makers(sorted({*frame["subclass"]})))
    with write_atomically(out) as temporary:
        pq.write_table(pa.Table.from_pandas(frame), temporary)
    parts = []
    for split in ("train", "validation", "test"):
        rows = frame[frame["split"] == split]
        centres, classes = rows["subclass"].nunique(), rows["label"].nunique()
        parts.append(f"{split}: {len(rows):,} photographs of {centres} models in {classes} classes")
    return f"{'; '.join(parts)}."


Cell = tuple[str, int, str]
"""A loss, K and start."""


def name_of(cell: Cell) -> str:
    """Return the name of a cell's files."""
    loss, k, start = cell
    return f"{loss}-k{k}-{start}"


def rows_of(known: shared.Kept, cell: Cell) -> Path:
    """Return the path of a cell's results, one row per seed; the file exists if the cell is finished."""
    return known.folder / "runs" / f"{name_of(cell)}.csv"


def run_cell(experiment: Experiment, cell: Cell, data: dict[str, object], out: Path, known: shared.Kept) -> None:
    """Search, train the best trial with each seed, and save the results."""
    (loss, k, start), folder = cell, out / name_of(cell)
    # One proxy gets the budget of all cells of several together, since the best of them is compared with it.
    cells = sum(len(starts(loss, several)) for several in KS[1:]) if k == 1 else 1
    if rows_of(known, cell).exists():
        return
    values = {
        "loss.proxies_per_class": k,
        "training.epochs": experiment.epochs,
        "evaluation.start": False,
        **shared.LEAN,
        **experiment.values,
        **data,
        **experiment.start(start),
    }
    if k == 1 and loss != "arcface-sub-centers":
        values |= {"loss.gamma": 0.1, "loss.center_weight": 0.0}  # without effect for one proxy
    # Start from the best values of one proxy, the next smaller K with the same start, and the same K drawn.
    smaller = max((smaller for smaller in KS if smaller < k), default=k)
    siblings = dict.fromkeys([(loss, 1, "drawn"), (loss, smaller, start), (loss, k, "drawn")])
    paths = [known.recipe(name_of(sibling)) for sibling in siblings if sibling != cell]
    proxemic.tune(
        f"{experiment.recipes}/{loss}",
        out=folder / "search",
        overrides=values,
        around=shared.AROUND,
        budget=experiment.budget * cells,
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
    """Return the test metrics of a run, and the information of its proxies about the centres of training images."""
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


def read_cells(known: shared.Kept) -> dict[Cell, list[dict[str, str]]]:
    """Read the rows of finished cells, one per seed."""
    cells = [(loss, k, start) for loss in LOSSES for k in KS for start in starts(loss, k)]
    return {cell: rows for cell in cells if (rows := shared.read_rows(rows_of(known, cell)))}


def column(rows: Sequence[Mapping[str, str]], name: str) -> dict[int, float]:
    """Return the values of a column by seed."""
    return {int(row["seed"]): float(row[name]) for row in rows}


def by_start(cells: Mapping[Cell, Sequence[Mapping[str, str]]], show: str) -> Table:
    """Tabulate the mean and 95% interval of a column for each loss, K and start."""

    def cell(key: Cell) -> str:
        rows = cells.get(key)
        if rows is None or (show == "bits" and key[1] == 1):
            return MISSING
        if show != "bits":
            return shared.interval(column(rows, show).values())
        beyond = format_estimate(t_interval(shared.paired(column(rows, "bits"), column(rows, "chance"))), factor=1)
        # The CSV file would quote a cell that begins with a minus and is no number.
        beyond = beyond.removeprefix("-") if beyond.startswith("-0.00") else beyond
        most, used = (fmean(column(rows, name).values()) for name in ("most", "used"))
        return f"{beyond} of {most:.2f} ({used:.1f})"

    keys = [(loss, k) for loss in LOSSES for k in KS if (loss, k, "drawn") in cells]
    return Table(["loss", "K", *STARTS], [[*key, *(cell((*key, start)) for start in STARTS)] for key in keys])


def chosen(cells: Mapping[Cell, Sequence[Mapping[str, str]]], loss: str) -> Cell:
    """Return the cell of several proxies that has the best mean on the validation classes."""
    several = [key for key in cells if key[0] == loss and key[1] > 1]
    return max(several, key=lambda key: fmean(column(cells[key], "validation").values()))


def length(known: shared.Kept, cells: Sequence[Cell]) -> str:
    """Return the length of the searches of cells together, in complete trainings."""
    return f"{sum(known.curve(name_of(cell)).full_runs[-1] for cell in cells):.0f}"


def differences(cells: Mapping[Cell, Sequence[Mapping[str, str]]], known: shared.Kept) -> Table:
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


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Make the cells that are not kept."""
    experiment, out, data = EXPERIMENTS[arguments.dataset], arguments.out / arguments.dataset, dict[str, object]()
    losses = shared.check_losses(arguments.losses, LOSSES)
    if arguments.dataset == "makers":
        joined = (out / "makers.parquet").resolve()
        if not joined.exists():
            if arguments.root is None:
                raise UserError("--root is missing: give the features.parquet that docs/experiments/cars.py makes.")
            print(join_classes(arguments.root, joined), flush=True)
        data = shared.place_of(joined)
    proxemic.keep_freed_memory()
    for loss in losses:
        for k in KS:
            for start in starts(loss, k):
                run_cell(experiment, (loss, k, start), data, out, known)


def tables(_: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate MAP@R, what the proxies found, and the differences."""
    cells = read_cells(known)
    shared.check_kept(cells, "cell", known)
    made = {"map": by_start(cells, "map@r"), "bits": by_start(cells, "bits"), "differences": differences(cells, known)}
    return {f"centres-{known.folder.name}-{name}": table for name, table in made.items()}


def main() -> None:
    """Make the cells that are not kept, or write the tables."""
    shared.run_script(__doc__, train, tables, EXPERIMENTS, "runs/centres")


if __name__ == "__main__":
    main()
