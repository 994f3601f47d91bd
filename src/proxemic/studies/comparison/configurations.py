"""Draw configurations from a search space, at which recipes that differ in one thing are compared in pairs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.recipes.flags import as_flags, read_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.comparison.entries import Entry, has_key
from proxemic.studies.tuning.run import content_of, plan_space
from proxemic.studies.tuning.spaces import Choices, Dimension, read_space, recipe_point, recipe_value, trial_values

FEWEST = 3
"""The fewest configurations from which the spread of the differences can be estimated."""


def plan_configurations(
    entries: Sequence[Entry], count: int, space: str | None, around: str | Path | None, flags: Sequence[str]
) -> tuple[tuple[dict[str, Any], ...], str]:
    """Draw configurations for recipes, and name the keys that are not drawn.

    Keys in which the recipes differ, and keys that flags set, are not drawn. Configuration n depends only on n and the
    space, so that more configurations can be added.

    Args:
        entries: Recipes to compare, two or more.
        count: Number of configurations, at least `FEWEST`.
        space: Name or file of the search space; None takes that of the first recipe's loss.
        around: Recipe near whose values to draw: within a quarter of each key's range on either side; None draws from
            the whole ranges.
        flags: Overrides of all recipes.
    """
    if count < FEWEST:
        raise ValueError(f"--paired is {count}, but must be at least {FEWEST}.")
    if len(entries) < 2:
        raise UserError(
            "--paired compares what differs at equal configurations: give --vary KEY=VALUE,VALUE or another recipe by "
            "--vary FILE.yaml."
        )
    centre = None if around is None else content_of(around)
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{entry.slug}.yaml" for entry in entries]
        for file, entry in zip(files, entries, strict=True):
            write_text(file, entry.yaml)
        content, pinned = plan_space(files[0], (), space, around=centre)
        pinned += [key for key in content if key in read_flags(flags)]
        differ = [key for key in content if len({str(recipe_value(entry.recipe, key)) for entry in entries}) > 1]
        differ = [key for key in differ if all(has_key(entry.recipe, key) for entry in entries)]
        left = {key: item for key, item in content.items() if key not in (*pinned, *differ)}
        if not left:
            raise UserError(
                "The recipes differ in every key of the search space: let the second extend the first and change one "
                "thing, or give another --space."
            )
        dimensions = read_space(left, "The search space")
        point = None if centre is None else recipe_point(centre, dimensions)
        drawn = tuple(
            trial_values(_draw(dimensions, np.random.default_rng([2026, number]), point), dimensions, entries[0].recipe)
            for number in range(count)
        )
        for file, entry in zip(files, entries, strict=True):
            try:
                values = {key: value for key, value in drawn[0].items() if has_key(entry.recipe, key)}
                _ = read_recipe(file, as_flags(values), own_code=True).recipe
            except (UserError, ValueError) as error:
                raise UserError(f"The search space does not fit {entry.title}: {error}") from error
    notes = [f"Drawn: {', '.join(left)}."]
    if given := [*differ, *pinned]:
        notes.append(f"Not drawn, because the recipes differ in it or flags set it: {', '.join(given)}.")
    notes += [
        f"{entry.title} has no {', '.join(lacking)}."
        for entry in entries
        if (lacking := [key for key in left if not has_key(entry.recipe, key)])
    ]
    return drawn, " ".join(notes)


def _draw(
    dimensions: Mapping[str, Dimension], random: np.random.Generator, point: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Draw each value uniformly, or log-uniformly if its range is logarithmic."""
    drawn: dict[str, Any] = {}
    for name, item in dimensions.items():
        if isinstance(item, Choices):
            drawn[name] = item.choices[random.integers(len(item.choices))]
            continue
        low, high = item.low - item.integer / 2, item.high + item.integer / 2  # whole numbers equally likely
        if item.log:
            low, high = math.log(low), math.log(high)
        if point is not None and name in point:
            centre, quarter = math.log(point[name]) if item.log else point[name], (high - low) / 4
            low, high = max(low, centre - quarter), min(high, centre + quarter)
        value = random.uniform(low, high)
        drawn[name] = item.nearest(float(f"{math.exp(value) if item.log else value:.6g}"))
    return drawn
