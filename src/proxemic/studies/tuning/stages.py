"""Compute what each stage of a search starts with: values of the recipe, and a share of the trials."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.recipes.flags import as_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.tuning.spaces import Stage, recipe_value

with optional_dependency("train"):
    import yaml


def shares(stages: Sequence[Stage], total: int) -> list[int]:
    """Divide a number of trials, or of epochs, among the stages; each gets at least one.

    Raises:
        ValueError: If there are fewer trials than stages.

    >>> shares([Stage({}, {}, share=0.4), Stage({}, {})], 50)
    [20, 30]
    """
    if total < len(stages):
        raise ValueError(
            f"--trials is {total}, but must be at least {len(stages)}, one for each stage of the search space."
        )
    left = 1 - sum(stage.share or 0 for stage in stages)
    even = left / max(1, sum(stage.share is None for stage in stages))
    counts: list[int] = []
    for after, stage in zip(range(len(stages) - 1, -1, -1), stages, strict=True):
        wanted = total - sum(counts) if after == 0 else round(total * (even if stage.share is None else stage.share))
        counts.append(min(max(wanted, 1), total - sum(counts) - after))
    return counts


def first_values(recipe: Mapping[str, Any], stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Return a recipe's values of the searched keys, by stage; a second-phase stage reads the second phase."""
    phases = [(recipe.get("second_phase") or {}) if stage.from_best else recipe for stage in stages]
    return [
        {name: as_choice(value) for name in stage.search if (value := recipe_value(phase, name)) is not None}
        for stage, phase in zip(stages, phases, strict=True)
    ]


def as_choice(value: Any) -> Any:
    """Convert lists and mappings to JSON text, as in `proxemic.studies.tuning.spaces.Choices`."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def stage_values(
    base: Mapping[str, Any], stages: Sequence[Stage], number: int, carried: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that all trials of a stage (numbered from 1) share, including the best of earlier stages.

    If the last stage starts from the weights of the stage before, these two become the phases of the best recipe; of
    the recipe's own second phase, only the number of epochs counts.
    """
    stage = stages[number - 1]
    values: dict[str, Any] = {}
    if stages[-1].from_best and base.get("second_phase"):
        epochs = base["second_phase"]["epochs"]
        rest = base["training"]["epochs"] - epochs
        values = {"second_phase": None, "training.epochs": epochs if stage.from_best else rest}
    if stage.from_best:
        values["training.warmup_epochs"] = 0  # as in a second phase
    return {**values, **carried, **stage.fixed}


def check_stages(recipe: Path, flags: Sequence[str], stages: Sequence[Stage], name: str) -> None:
    """Read a recipe of each stage, to report unknown keys before anything is written."""
    base = yaml.safe_load(read_recipe(recipe, flags, own_code=True).yaml)
    carried: dict[str, Any] = {}
    for number, stage in enumerate(stages, 1):
        values = stage_values(base, stages, number, carried)
        try:
            content = yaml.safe_load(read_recipe(recipe, (*flags, *as_flags(values)), own_code=True).yaml)
            point = middle(stage.dimensions(content))
            _ = read_recipe(recipe, (*flags, *as_flags({**values, **point})), own_code=True).recipe
        except (UserError, ValueError) as error:
            raise UserError(f"The search space {name}, stage {number}, does not fit the recipe: {error}") from error
        carried |= point


def middle(dimensions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a middle value of each dimension, to check that the recipe accepts it."""
    values = {name: dimension.values() for name, dimension in dimensions.items()}
    return {name: value[len(value) // 2] for name, value in values.items()}


def recipe_fingerprint(base: Mapping[str, Any]) -> str:
    """Hash a recipe without the keys that may differ between the machines of a search."""
    content = json.loads(json.dumps(base))
    content.pop("published", None)
    content["data"].get("init_args", {}).pop("root", None)
    for section, key in (("batches", "workers"), ("training", "accelerator"), ("training", "threads")):
        content[section].pop(key, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
