"""Summarise in one sentence how good a model is, and name the commands to run after a training."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxemic.tables import counted

BEFORE = {"start": "before training", "untrained": "before training, new head"}
"""How tables and texts name the networks before training."""

START_KEPT = "No epoch was better than the network before training, and the run kept that network."


def verdict(
    values: Mapping[str, float],
    *,
    classes: int,
    queries: int,
    trained_on: int = 0,
    before: Mapping[str, float] | None = None,
    chance: Mapping[str, float] | None = None,
    bounds: tuple[float, float] | None = None,
) -> str:
    """State how often the nearest image is right, or the first metric if Recall@1 was not measured.

    Args:
        values: Metrics in [0, 1] by name.
        classes: Number of evaluated classes.
        queries: Number of queries.
        trained_on: Number of these classes on which the model was trained.
        before: Metrics of the network before training.
        chance: Expected metrics of a random ranking.
        bounds: The confidence interval of the metric.

    >>> verdict({"recall@1": 0.893}, classes=256, queries=3072, chance={"recall@1": 0.004})
    'On 256 classes never seen in training, the nearest image is right for 89.3 % of 3,072 queries; by chance 0.4 %.'
    """
    metric = "recall@1" if "recall@1" in values else next(iter(values))
    seen = {0: " never seen in training", classes: " seen in training"}
    on = counted(classes, "class", "classes") + seen.get(trained_on, f", {trained_on:,} of them seen in training")
    is_of = ("the nearest image is right for", "of") if metric == "recall@1" else (f"{metric} is", "for")
    said = f"On {on}, {is_of[0]} {100 * values[metric]:.1f} % {is_of[1]} {counted(queries, 'query', 'queries')}"
    if bounds is not None:
        said += " ({:.1f} to {:.1f})".format(*(100 * bound for bound in bounds))
    for name, other in (("before training", before), ("by chance", chance)):
        if other and metric in other:
            said += f"; {name} {100 * other[metric]:.1f} %"
    return f"{said}."


def recorded_verdict(recorded: Mapping[str, Any]) -> str:
    """Return the summary of a run's test metrics from its ``metrics.json``; empty if there are none."""
    if "test" not in recorded:
        return ""
    return verdict(
        recorded["test"],
        classes=recorded["test_classes"],
        queries=recorded["test_queries"],
        trained_on=recorded.get("test_classes_trained_on", 0),
        before=recorded.get("start") or recorded.get("untrained"),
        chance=recorded.get("chance"),
    )


def next_commands(run: Path, recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return commands that are useful after a training, by their purpose."""
    path = shlex.quote(str(run))
    if recorded.get("kept") in BEFORE:
        first = {"tune its hyper-parameters": f"proxemic tune --recipe {shlex.quote(f'{run}/recipe.yaml')}"}
    else:
        first = {"search your photos with it": f"proxemic gallery create shop PHOTOS --model {path}"}
    if "test" not in recorded:
        return first
    return {"see where it fails": f"proxemic evaluate {path} --worst 20 --pictures worst.html", **first}
