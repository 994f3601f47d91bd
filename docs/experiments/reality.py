"""Run reality checks after Musgrave et al. (2020): tune losses alike on class-disjoint folds, and test several seeds.

    python docs/experiments/reality.py glyphs-small softmax
    python docs/experiments/reality.py cars-features --root runs/cars/features.parquet
    python docs/experiments/reality.py cars-features --table docs/experiments

The same command continues the check of each loss, which is kept beside this script when it is finished. With --table
nothing is trained.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import _experiments as shared

import proxemic
from proxemic.studies.reality_check.tables import KINDS
from proxemic.tables import MISSING, Table

METRICS = {"map@r": "MAP@R", "recall@1": "P@1"}
WARP, CONTROL = "warp", "euclidean-softmax-two-phases"
"""Two losses with the same phases and seeds."""


@dataclass(frozen=True)
class Check:
    """The losses of a check, and its size."""

    losses: tuple[str, ...]
    trials: int
    repeats: int
    embedding_size: int


CHECKS = {
    "glyphs-small": Check(("softmax", "proxy-anchor", "proxy-nca-plus-plus", CONTROL, WARP), 20, 5, 32),
    "cars-features": Check(("proxy-anchor", "multi-similarity", CONTROL, WARP), 50, 10, 128),  # the paper's own size
}


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Check each loss that has no kept check."""
    dataset, root = arguments.dataset, arguments.root
    overrides: dict[str, object] = shared.LEAN | shared.place_of(root)
    if root is not None:  # the folds take all training classes, those of validation, too
        overrides["data.labels"] = str(root.with_name("all-training.csv"))
    for loss in shared.check_losses(arguments.losses, CHECKS[dataset].losses):
        if not known.check(loss):
            run_check(dataset, loss, arguments.out / dataset / loss, overrides, known)


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the finished checks of a data set."""
    return {f"reality-{arguments.dataset}": table(CHECKS[arguments.dataset], known)}


def run_check(dataset: str, loss: str, out: Path, overrides: Mapping[str, object], known: shared.Kept) -> None:
    """Run or continue the check of a loss, and keep the metrics of the repetitions."""
    check = CHECKS[dataset]
    result = proxemic.reality_check(
        [f"{dataset}/{shared.SEARCHES[loss].recipe}"],
        out=out,
        overrides=overrides,
        trials=check.trials,
        repeats=check.repeats,
        embedding_size=check.embedding_size,
        report=lambda line: print(line, flush=True),
    )
    known.keep_check(loss, [(row.kind, row.metric, row.repeat, row.value) for row in result.rows])


def table(check: Check, known: shared.Kept) -> Table:
    """Tabulate the test metrics of each kind of embedding, in percent, and the gain of the warp over its control."""
    found = {loss: values for loss in check.losses if (values := known.check(loss))}
    shared.check_kept(found, "finished check", known)
    measured = {kind for values in found.values() for kind, _ in values}
    columns = [(kind, metric) for kind in KINDS if kind in measured for metric in METRICS]
    rows = [
        [loss, *(shared.interval(values[key].values()) if key in values else MISSING for key in columns)]
        for loss, values in found.items()
    ]
    if found.keys() >= {WARP, CONTROL}:
        gains = (shared.interval(shared.paired(found[WARP][column], found[CONTROL][column])) for column in columns)
        rows.append([f"{WARP} − {CONTROL}", *gains])
    return Table(["loss", *(f"{kind} {METRICS[metric]}" for kind, metric in columns)], rows)


def main() -> None:
    """Check, or write the table."""
    shared.run_script(__doc__, train, tables, CHECKS, "runs/reality")


if __name__ == "__main__":
    main()
