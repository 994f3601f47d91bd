"""The stages of a search: the values of the recipe that each begins with, and its share of the trials."""

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
    """Divide a number of trials, or of epochs, among the stages; each has at least one.

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
    """Return the values of a recipe for each stage; a stage that is the second phase takes those of that phase."""
    phases = [(recipe.get("second_phase") or {}) if stage.from_best else recipe for stage in stages]
    return [
        {name: as_choice(value) for name in stage.search if (value := recipe_value(phase, name)) is not None}
        for stage, phase in zip(stages, phases, strict=True)
    ]


def as_choice(value: Any) -> Any:
    """Return a value as `proxemic.studies.tuning.spaces.Choices` hold it."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def stage_values(
    base: Mapping[str, Any], stages: Sequence[Stage], number: int, carried: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the recipe that all trials of a stage (from 1) share, with the best ones carried over.

    If the last stage begins with weights of the stage before, these two are the phases of the best recipe: the recipe's
    own second phase gives only its number of epochs.
    """
    stage = stages[number - 1]
    values: dict[str, Any] = {}
    if stages[-1].from_best and base.get("second_phase"):
        epochs = base["second_phase"]["epochs"]
        rest = base["training"]["epochs"] - epochs
        values = {"second_phase": None, "training.epochs": epochs if stage.from_best else rest}
    if stage.from_best:
        values["training.warmup_epochs"] = 0  # as in a second phase, which this will be
    return {**values, **carried, **stage.fixed}


def check_stages(recipe: Path, flags: Sequence[str], stages: Sequence[Stage], name: str) -> None:
    """Read one recipe of each stage, so that a key that it lacks is reported before anything is written."""
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
    """Return a value of each dimension, to check that the recipe can be read with it."""
    values = {name: dimension.values() for name, dimension in dimensions.items()}
    return {name: value[len(value) // 2] for name, value in values.items()}


def recipe_fingerprint(base: Mapping[str, Any]) -> str:
    """Hash a recipe without what changes no result or may differ between the machines that share a search."""
    content = json.loads(json.dumps(base))
    content.pop("published", None)
    content["data"].get("init_args", {}).pop("root", None)
    for section, key in (("batches", "workers"), ("training", "accelerator"), ("training", "threads")):
        content[section].pop(key, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
