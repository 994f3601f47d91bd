"""Print the recipe of a kept search or run, which `proxemic train` takes.

    python docs/experiments/kept.py glyphs-small mpa > mpa.yaml
    python docs/experiments/kept.py glyphs-small mpa "40% wrong" --seed 3 > wrong.yaml
    python docs/experiments/kept.py glyphs-small several-proxies "K=10" --seed 7 > configuration-7.yaml
    proxemic train --recipe mpa.yaml --out runs/mpa

The names of searches, components and conditions are those of the tables in kept/; without a condition the recipe is as
the search found it. The seed of a component is the number of its configuration.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _experiments as shared
import _kept
import evidence
import functions
import sweeps

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.recipes.reader import read_recipe


def recipe_of(
    kept: Path, dataset: str, name: str, condition: str = "", seed: int | None = None, root: Path | None = None
) -> str:
    """Return the recipe of a run with all values, as YAML."""
    known = shared.Kept(kept, dataset)
    row = _find(known, name, condition, seed)
    recipe, values = _changes(known, name, condition, root) if row["values"] is None else _recorded(row)
    overrides = {**values, **shared.place_of(root), "seed": row["seed"]}
    return read_recipe(recipe, overrides, own_code=True).yaml


def _find(known: shared.Kept, name: str, condition: str, seed: int | None) -> Mapping[str, Any]:
    tables = ("evidence", "runs", "centres")
    rows = [row for table in tables for row in _kept.read(known.kept, table, known.dataset, name)]
    under = [{"condition": "", "values": None, **row} for row in rows]
    if known.is_searched(name):  # also without runs
        under.append({"condition": "", "values": None, "seed": seed or 0})
    if not under:
        names = sorted(
            {row["name"] for row in _kept.read_all(known.kept, "searches") if row["dataset"] == known.dataset}
        )
        raise UserError(f"There is no {name} on {known.dataset}: the searches are {', '.join(names) or 'of others'}.")
    under = [row for row in under if row["condition"] == condition]
    if not under:
        conditions = dict.fromkeys(row["condition"] for row in rows if row.get("condition"))
        raise UserError(f"{name} has no run of {condition or 'no condition'}: take one of {', '.join(conditions)}.")
    found = [row for row in under if seed in (None, row["seed"])]
    if not found:
        raise UserError(f"{name} has no run with seed {seed}: take one up to {max(row['seed'] for row in under)}.")
    return found[0]


def _recorded(row: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    path = shared.temporary_folder() / "recipe.yaml"
    write_text(path, row["recipe"])
    return path, json.loads(row["values"])


def _changes(known: shared.Kept, name: str, condition: str, root: Path | None) -> tuple[Path, Mapping[str, Any]]:
    """Return what a program changes in which recipe under a condition; older runs do not say it themselves."""
    if name == functions.LOSS:
        return functions.recipe_of(known, condition)
    if known.dataset == "toy":
        recipe = sweeps.recipe_of(known, shared.temporary_folder())
        found = {value: changes for what in sweeps.SWEEPS for value, changes in sweeps.sweep(recipe, what).items()}
        return recipe, found[condition]
    if not condition or condition == shared.SWAPPED:
        return known.recipe(name), {}
    runner = evidence.Runner(known.kept, dict.fromkeys(shared.DATA_SETS, root), shared.temporary_folder())
    runs = runner.condition(known.dataset, name, condition, range(0))
    return runs.recipe, runs.values


def main() -> None:
    """Print a recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=[*shared.DATA_SETS, "makers", "letters", "toy"])
    parser.add_argument("name", help="a search, distance-functions, or a component of paired configurations")
    parser.add_argument("condition", nargs="?", default="", help="what changes (as the search found it)")
    parser.add_argument("--seed", type=int, help="the seed, or the number of a configuration (the first)")
    parser.add_argument("--root", type=Path, metavar="PATH", help="where the data are")
    shared.add_kept(parser)
    given = parser.parse_args()
    try:
        print(recipe_of(given.kept, given.dataset, given.name, given.condition, given.seed, given.root))
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
