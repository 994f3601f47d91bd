"""Vary α, k1 and k2, or Δ of the warped softmax in two phases, with five seeds (warping paper, figures 6 to 8).

    python docs/experiments/sweeps.py glyphs-small alpha
    python docs/experiments/sweeps.py toy k1-k2
    python docs/experiments/sweeps.py glyphs-small alpha --table

The other values are those that the search of `warp` on the data set found, or those of recipe toy/warped-softmax, whose
last ten of 40 epochs are a second phase with half of its α. The same command continues a stopped sweep, and finished
runs are kept beside this script.
"""

from argparse import Namespace
from itertools import product
from pathlib import Path

import _experiments as shared
import _measures

from proxemic.files import write_text
from proxemic.recipes.yaml_files import read_yaml
from proxemic.tables import Table

LOSS = "warp"
SEEDS = range(5)
SWEEPS = ("alpha", "k1-k2", "delta")
ALPHAS = (0, 1, 2, 4, 8, 16, 32, 95)
"""α of the first phase; in the second it is smaller by the same factor as in the recipe."""
SLOPES = ((0.4, 0.6, 0.8, 1.0), (1.0, 1.5, 2.0, 3.0))
"""k1 and k2 of both phases."""
FACTORS = (1, 1.5, 2, 2.5, 3.5, 4.5, 5.5)
"""The factor k of Δ in both phases."""
TOY = """\
extends: toy/warped-softmax
loss:
  alpha: 3.0
training:
  epochs: 40
  callbacks: null
second_phase:
  epochs: 10
  loss:
    alpha: 1.5
"""


def sweep(recipe: Path, what: str) -> dict[str, dict[str, object]]:
    """Return the overrides of each value of a sweep by the condition under which its runs are kept."""
    if what == "alpha":
        return {f"α={alpha}": alphas(recipe, alpha) for alpha in ALPHAS}
    if what == "delta":
        return {f"Δ×{factor:g}": both_phases(delta_scale=factor) for factor in FACTORS}
    return {f"k1={k1}, k2={k2}": both_phases(k1=k1, k2=k2) for k1, k2 in product(*SLOPES)}


def alphas(recipe: Path, alpha: float) -> dict[str, object]:
    """Return the overrides for an α of the first phase."""
    phases = read_yaml(recipe), read_yaml(recipe)["second_phase"]
    first, second = (phase["loss"].get("init_args", phase["loss"])["alpha"] for phase in phases)
    return {"loss.alpha": float(alpha), "second_phase.loss.alpha": alpha * second / first}


def both_phases(**values: float) -> dict[str, object]:
    """Return the overrides that give both phases the same values of the loss."""
    return {f"{phase}loss.{name}": value for name, value in values.items() for phase in ("", "second_phase.")}


def recipe_of(known: shared.Kept, out: Path) -> Path:
    """Return the recipe whose values are varied."""
    if known.dataset != "toy":
        shared.check_searched([LOSS], known)
        return known.recipe(LOSS, out)
    recipe = out / f"{LOSS}.yaml"
    write_text(recipe, TOY)
    return recipe


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Train every value with every seed."""
    shared.check_losses(arguments.losses, [LOSS])
    out = arguments.out / arguments.dataset
    recipe = recipe_of(known, out)
    for name, overrides in sweep(recipe, arguments.sweep).items():
        if not {*SEEDS} <= known.runs(LOSS, name)["recall@1"].keys():
            measure = _measures.share_within_alpha if arguments.sweep == "alpha" else None
            shared.make_runs(known, LOSS, SEEDS, out, arguments.root, name, overrides, recipe, measure)


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate Recall@1, the metric of the figures: against k1 and k2 in a grid, otherwise with MAP@R in rows."""
    recipe = recipe_of(known, arguments.out / arguments.dataset)
    found = {name: runs for name in sweep(recipe, arguments.sweep) if (runs := known.runs(LOSS, name))["recall@1"]}
    shared.check_kept(found, "run of this sweep", known)
    if arguments.sweep == "k1-k2":
        columns = [f"k2 = {k2:g}" for k2 in SLOPES[1]]
        cells = {k1: [found.get(f"k1={k1}, k2={k2}") for k2 in SLOPES[1]] for k1 in SLOPES[0]}
        rows = [
            [f"k1 = {k1:g}", *(runs and shared.interval(runs["recall@1"].values()) for runs in row)]
            for k1, row in cells.items()
        ]
        return {f"sweep-k1-k2-{known.dataset}": Table(["Recall@1", *columns], rows)}
    metrics = ("recall@1", "map@r", *(["within"] if arguments.sweep == "alpha" else []))
    rows = [[name, *(shared.interval(runs[metric].values()) for metric in metrics)] for name, runs in found.items()]
    columns = [arguments.sweep, *((shared.METRICS | shared.MEASURES)[metric] for metric in metrics)]
    return {f"sweep-{arguments.sweep}-{known.dataset}": Table(columns, rows)}


def main() -> None:
    """Train, or write the table."""
    datasets = [*shared.DATA_SETS, "toy"]
    shared.run_script(__doc__, train, tables, datasets, "runs/sweeps", sweep=SWEEPS)


if __name__ == "__main__":
    main()
