"""Comparisons with made-up results: run directories written by hand."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from proxemic.studies.comparison.directory import Cell, Comparison
from proxemic.studies.comparison.entries import Entry

RECIPE = {
    "data": {"class_path": "proxemic.data.Glyphs", "init_args": {"split_seed": 0}},
    "model": {"backbone": "convnet", "embedding_size": 16, "pretrained": False, "weights": None},
    "loss": {"class_path": "proxemic.losses.NormalizedSoftmaxLoss", "init_args": {"scale": 16}},
    "optim": {"optimizer": {"class_path": "torch.optim.AdamW"}},
    "images": {"size": 32},
    "batches": {"size": 8},
    "training": {"epochs": 2},
    "evaluation": {
        "recall_at": [1, 2],
        "precision_at": [],
        "map_at": [],
        "ndcg_at": [8],
        "nmi": False,
        "metric": "map@r",
        "select_on": "validation",
        "precision": "32-true",
    },
    "seed": 0,
    "second_phase": None,
    "published": None,
}


def entry(name: str, label: str = "ALoss", dataset: str | None = None, **parts: Any) -> Entry:
    """`RECIPE` with some parts replaced."""
    given = {
        key: value | parts.get(key, {}) if isinstance(value, dict) else parts.get(key, value)
        for key, value in RECIPE.items()
    }
    dataset = name.partition("/")[0] if dataset is None else dataset
    return Entry(name, name.replace("/", "-"), dataset, label, yaml.safe_dump(given, sort_keys=False))


def finish(
    cell: Cell,
    test: Mapping[str, float],
    curve: Sequence[float] = (0.25, 0.5),
    selected_on: str = "",
    **measured: dict[str, float],
) -> None:
    """Write the run directory that training would have left."""
    cell.path.mkdir(parents=True, exist_ok=True)
    (cell.path / "recipe.yaml").write_text(cell.entry.with_seed(cell.seed))
    content = {
        "test": dict(test),
        "untrained": {"map@r": 0.125},
        "epoch": len(curve),
        "selected_on": selected_on or cell.entry.selected_on,
        "seed": cell.seed,
        "validation": {"map@r": curve[-1]},
        **measured,
    }
    (cell.path / "metrics.json").write_text(json.dumps(content))
    with (cell.path / "history.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "step", "loss", "map@r", "seconds"])
        writer.writerows([number, 10 * number, 1.0, value, 2.5] for number, value in enumerate(curve, start=1))


def interval(first: float, second: float) -> tuple[float, float]:
    """Return mean and 95 % half-width of two values: s/√2 is half their distance, and t of one degree is Cauchy's."""
    return (first + second) / 2, math.tan(0.475 * math.pi) * abs(first - second) / 2


def comparison(path: Path, entries: Sequence[Entry], seeds: int = 3) -> Comparison:
    return Comparison(path, tuple(entries), tuple(range(seeds)))
