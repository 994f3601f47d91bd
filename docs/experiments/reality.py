"""Run reality checks after Musgrave et al. (2020): tune losses alike on class-disjoint folds, and test several seeds.

    python docs/experiments/reality.py glyphs-small softmax
    python docs/experiments/reality.py cars-features --root runs/cars/features.parquet
    python docs/experiments/reality.py cars-features --table

On glyphs-small all losses train a network with layer norm. On cars-features all train as in the warping paper's
appendix D: layer norm, RMSProp, and two phases, each of which ends at a plateau and is searched for itself. The same
command continues the check of each loss, which is kept beside this script when it is finished. With --table nothing is
trained.
"""

import json
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import _experiments as shared

import proxemic
from proxemic.files import write_text
from proxemic.studies.reality_check.tables import KINDS
from proxemic.tables import MISSING, Table

METRICS = {"map@r": "MAP@R", "recall@1": "P@1"}
WARP, CONTROL = "warp", "euclidean-softmax-two-phases"
"""Two losses with the same phases and seeds."""


@dataclass(frozen=True)
class Check:
    """The losses of a check, its size, and the values that the recipes of all losses share."""

    losses: tuple[str, ...]
    trials: int
    repeats: int
    embedding_size: int
    shared: Mapping[str, object] = field(default_factory=dict)


AS_IN_THE_PAPER = {
    "model": {"unit_features": False, "layer_norm": True},
    "optim": {
        "optimizer": {"class_path": "torch.optim.RMSprop", "init_args": {"momentum": 0.9, "weight_decay": 0.0001}},
        "schedule": None,
        "lr": 0.0001,
        "loss_lr": 0.005,
    },
    "training": {"epochs": 30, "until_plateau": {"patience": 3}},
    "second_phase": {"epochs": 10, "optim": {"lr": 0.00001, "loss_lr": 0.0005}},
}
"""Momentum and weight decay are those of Musgrave et al.; the paper says neither these nor how long a plateau lasts."""
CHECKS = {
    "glyphs-small": Check(
        losses=("softmax", "proxy-anchor", "proxy-nca-plus-plus", CONTROL, WARP),
        trials=20,
        repeats=5,
        embedding_size=32,
        shared={"model": {"layer_norm": True}},
    ),
    "cars-features": Check(  # the losses of table VII and the control, at the paper's own size
        losses=(
            *("cosface", "multi-similarity", "soft-triple", "proxy-nca-plus-plus", "proxy-anchor", "hist"),
            *(CONTROL, WARP),
        ),
        trials=50,
        repeats=10,
        embedding_size=128,
        shared=AS_IN_THE_PAPER,
    ),
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
    recipe = out.parent / "recipes" / f"{loss}.yaml"
    write_text(recipe, json.dumps({"extends": f"{dataset}/{shared.SEARCHES[loss].recipe}", **check.shared}))  # is YAML
    result = proxemic.reality_check(
        [recipe],
        out=out,
        overrides=overrides,
        trials=check.trials,
        repeats=check.repeats,
        embedding_size=check.embedding_size,
        report=lambda line: print(line, flush=True),
    )
    values = defaultdict[tuple[str, str], dict[int, float]](dict)
    for row in result.rows:
        values[row.kind, row.metric][row.repeat] = row.value
    known.keep_check(loss, values)


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
