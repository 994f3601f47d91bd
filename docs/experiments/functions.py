"""Train the functions of distance of the warping paper's table III, with five seeds.

    python docs/experiments/functions.py glyphs-small
    python docs/experiments/functions.py glyphs-small --table

On Glyphs the recipes are those of glyphs-small/distance-functions: one phase, no augmentation, and the same rates,
which were tuned for none of them. On other data sets the same losses replace that of the recipe of the Euclidean
softmax, and α is in proportion to the average distance to the proxy (AvgDTP) of `identity`, which is trained first.
Everything is measured after the last epoch: validation would choose the untrained network where a training runs away.
The same command continues, and finished runs are kept beside this script.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import _experiments as shared
import _measures
import yaml

from proxemic.errors import UserError
from proxemic.recipes import find_recipe, load
from proxemic.recipes.reader import read_recipe
from proxemic.tables import Table

LOSS = "distance-functions"
"""The name under which the runs are kept; the condition is the function."""
FUNCTIONS = {
    "identity": "t1 − t2",
    "square": "t1² − t2²",
    "square-root": "√t1 − √t2",
    "power-1.5": "t1^1.5 − t2^1.5",
    "times-0.97": "0.97 t1 − t2",
    "times-0.5": "0.5 t1 − t2",
    "times-1.1": "1.1 t1 − t2",
    "times-2.0": "2.0 t1 − t2",
    "warp-12": "warp, k 0.5 and 1.5, α 12",
    "warp-6": "warp, k 0.9 and 1.1, α 6",
    "warp-2": "warp, k 0.25 and 2.25, α 2",
}
"""f1 − f2 in the order of the paper, by the name of the recipe."""
ON_CUB = {"warp-12": "warp-50", "warp-6": "warp-25", "warp-2": "warp-7.75"}
"""The recipes of the paper's functions, where their names are others, because α is larger."""
SEEDS = range(5)
ALPHA_ON_CUB = {"warp-12": 50.0, "warp-6": 25.0, "warp-2": 7.75}
"""The α of the paper, whose `identity` has an AvgDTP of 12.88."""
AVG_DTP_ON_CUB = 12.88
RATES = {
    "glyphs-small": {},
    "omniglot": {"optim.lr": 0.002, "optim.loss_lr": 0.02},
    shared.FEATURES: {"vectors.noise": 0.0},
    shared.PHOTOGRAPHS: {},
}
"""The rates of Glyphs for other characters; those of the recipe elsewhere. Vectors are augmented by noise."""
NO_AUGMENTATION = {
    f"augment.{name}": value
    for name, value in {"degrees": 0, "translate": 0, "scale": None, "shear": 0, "noise": 0}.items()
}
LAST = {"evaluation.select_on": "last", "evaluation.start": False}
SHOWN = ("recall@1", "nmi", "avg_dtp")


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Train every function, or those that the command line names, with every seed."""
    for name in shared.check_losses(arguments.losses, [*FUNCTIONS]):
        if not {*SEEDS} <= known.runs(LOSS, name)["recall@1"].keys():
            recipe, overrides = recipe_of(known, name)
            out = arguments.out / arguments.dataset
            shared.make_runs(
                known, LOSS, SEEDS, out, arguments.root, name, overrides, recipe, _measures.distance_to_proxy
            )


def recipe_of(known: shared.Kept, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the recipe of a function on a data set, and its overrides."""
    function = find_recipe(f"glyphs-small/{LOSS}/{name}")
    if known.dataset == "glyphs-small":
        return function, LAST
    loss = yaml.safe_load(read_recipe(function).yaml)["loss"]
    if name in ALPHA_ON_CUB:
        by_seed = known.runs(LOSS, "identity")["avg_dtp"]
        if not by_seed:
            raise UserError(f"α follows the AvgDTP of identity: train {known.dataset} identity first.")
        loss["init_args"]["alpha"] = ALPHA_ON_CUB[name] * by_seed[min(by_seed)] / AVG_DTP_ON_CUB
    overrides = RATES[known.dataset] | NO_AUGMENTATION | LAST | {"loss": loss, "evaluation.nmi": True}
    return find_recipe(f"{known.dataset}/euclidean-softmax"), overrides


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate the metrics of each function, and the gain in Recall@1 over the identity, paired by seed."""
    found = {name: runs for name in FUNCTIONS if (runs := known.runs(LOSS, name))["recall@1"]}
    shared.check_kept(found, "run of a function of distance", known)
    recalls = {name: runs["recall@1"] for name, runs in found.items()}
    rows = [
        [
            FUNCTIONS[name],
            *(shared.estimate(metric, runs[metric].values()) for metric in SHOWN),
            shared.interval(shared.paired(recalls[name], recalls["identity"])) if name != "identity" else "",
            printed(name),
        ]
        for name, runs in found.items()
    ]
    columns = ["f1 − f2", *((shared.METRICS | shared.MEASURES)[metric] for metric in SHOWN), "gain in Recall@1"]
    columns.append("paper, CUB")
    return {f"functions-{known.dataset}": Table(columns, rows)}


def printed(name: str) -> str:
    """Return what the paper prints: Recall@1, NMI and AvgDTP."""
    published = load(f"cub/{LOSS}/{ON_CUB.get(name, name)}").published
    assert published is not None
    return ", ".join(figure.printed for figure in published[0].figures("cub"))


def main() -> None:
    """Train, or write the table."""
    shared.run_script(__doc__, train, tables, shared.DATA_SETS, "runs/functions")


if __name__ == "__main__":
    main()
