"""Train and keep the runs of rule.md: a row per run, with what it changes in which recipe, and the commit."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _experiments as shared
import _kept

import proxemic
from proxemic.data import Splits
from proxemic.errors import TrainingDiverged
from proxemic.models import load_model
from proxemic.recipes.reader import read_recipe
from proxemic.runs.directory import RunDirectory
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.training.beginning import embed_by_recipe

BEFORE = {"training.epochs": 1, "second_phase": None, "optim.lr": 1e-12, "optim.loss_lr": 1e-12}
"""Overrides with which a run keeps the network as it is before training."""


@dataclass(frozen=True)
class Runs:
    """Runs of one recipe and condition, one per seed; ``name`` is that of their loss or component."""

    dataset: str
    name: str
    condition: str
    recipe: Path
    seeds: Sequence[int]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the recipe, besides its data and seed."""
    measure: Callable[[Path], Mapping[str, float]] | None = None
    root: Path | None = None
    history: bool = False
    """Whether the validation metrics of each epoch are kept."""


@dataclass(frozen=True)
class Evidence:
    """The kept runs of rule.md."""

    kept: Path

    def read(self, dataset: str, name: str) -> dict[tuple[str, int], Mapping[str, Any]]:
        """Return the rows of a loss or component by condition and seed."""
        rows = _kept.read(self.kept, "evidence", dataset, name)
        return {(row["condition"], row["seed"]): row for row in rows}

    def metric(self, dataset: str, name: str, condition: str, metric: str) -> dict[int, float]:
        """Return a metric of the runs of a condition by seed."""
        rows = self.read(dataset, name)
        found = {seed: row[metric] for (at, seed), row in rows.items() if at == condition}
        return {seed: value for seed, value in found.items() if value is not None}

    def missing(self, runs: Runs) -> list[int]:
        """Return the seeds without a row."""
        rows = self.read(runs.dataset, runs.name)
        return [seed for seed in runs.seeds if (runs.condition, seed) not in rows]

    def keep(self, dataset: str, name: str, row: Mapping[str, object]) -> None:
        """Add a row, or replace the one of the same condition and seed."""
        _kept.merge(self.kept, "evidence", [{"dataset": dataset, "name": name, **row}])

    def keep_history(self, runs: Runs, seed: int, history: Sequence[Mapping[str, float]]) -> None:
        """Keep the validation metrics of each epoch."""
        run = {"dataset": runs.dataset, "name": runs.name, "condition": runs.condition, "seed": seed}
        rows = [
            {**run, "epoch": int(row["epoch"])} | {metric: row[metric] for metric in _kept.ALL_METRICS}
            for row in history
        ]
        _kept.merge(self.kept, "epochs", rows)


def commit() -> str:
    """Return the commit of the working tree, which must not have changes in programs or locked versions."""
    where: Any = {"cwd": shared.HERE, "capture_output": True, "text": True, "check": True}
    changes = ["git", "status", "--porcelain", "--", "../../src", "*.py", "*.yaml", "rule.md", "../../uv.lock"]
    if changed := subprocess.run(changes, **where).stdout.strip():
        raise SystemExit(f"Commit first, since each row names the commit that made it: {changed.splitlines()[0]}")
    return subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], **where).stdout.strip()


def make(evidence: Evidence, runs: Runs, out: Path, made_by: str) -> None:
    """Train each seed that has no row, one after the other, and keep its row."""
    for seed in evidence.missing(runs):
        row, history = train_once(runs, seed, out)
        if runs.history:
            evidence.keep_history(runs, seed, history)
        evidence.keep(runs.dataset, runs.name, row | {"commit": made_by})
        print(
            f"{time.strftime('%H:%M:%S')} {runs.dataset} {runs.name} {runs.condition or 'as searched'} seed {seed}: "
            f"Recall@1 {100 * row['recall@1']:.2f}, {row['seconds']} s",
            flush=True,
        )


def train_once(runs: Runs, seed: int, out: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Train one seed; return its row, and its history.

    An interrupted training continues. A run that diverges has the metrics of its best epoch, or of the network before
    training if no epoch was finished.
    """
    began, run = time.monotonic(), RunDirectory(out / runs.dataset / runs.name / f"{runs.condition or 'plain'}-{seed}")
    overrides = {**shared.LEAN, **shared.place_of(runs.root), **runs.values, "seed": seed}
    quiet: dict[str, Any] = {"threads": 1, "progress": False, "report": lambda _: None}
    goes_on = run.checkpoint.exists()
    if not goes_on:
        shutil.rmtree(run.path, ignore_errors=True)
    diverged = False
    try:
        if goes_on:
            content = proxemic.train(out=run.path, resume=True, **quiet).metrics
        else:
            content = proxemic.train(runs.recipe, run.path, overrides=overrides, **quiet).metrics
        metrics, epoch, history = content["test"], content["epoch"], run.read_history()
    except TrainingDiverged:
        diverged, history = True, run.read_history()
        metrics, epoch = test_of_diverged(run, runs.recipe, overrides, quiet)
    measurable = not diverged and not run.keeps_features  # otherwise there are no proxies
    measured = runs.measure(run.path) if runs.measure and measurable else {}
    made = {
        "condition": runs.condition,
        "seed": seed,
        **{name: metrics[name] for name in _kept.ALL_METRICS},
        **{name: value for name, value in metrics.items() if name in shared.MEASURES},
        **measured,
        "epoch": epoch,
        "diverged": diverged,
        "seconds": round(time.monotonic() - began, 1),
        "recipe": shared.full_text(runs.recipe),
        "values": json.dumps(shared.LEAN | dict(runs.values)),
        "versions": shared.versions([run.path]),
    }
    shutil.rmtree(run.path)
    return made, history


def test_of_diverged(
    run: RunDirectory, recipe: Path, overrides: Mapping[str, Any], quiet: Mapping[str, Any]
) -> tuple[Mapping[str, float], int]:
    """Return the test metrics of the best epoch of a diverged run, and its number; 0 is the network before training."""
    if not run.model.exists():
        shutil.rmtree(run.path)
        first = {name: value for name, value in overrides.items() if not name.startswith("second_phase.")}
        untrained = proxemic.train(recipe, run.path, overrides=first | BEFORE, **quiet)
        return untrained.metrics["test"], 0
    read = read_recipe(recipe, overrides, own_code=True).recipe
    splits: Splits = read.load()
    assert splits.test is not None
    model = load_model(run.path, read.model.custom_backbone)[0]
    embeddings = embed_by_recipe(read, model, splits.test, "test")
    metric = read.evaluation.metric
    epoch = max((row[metric], int(row["epoch"])) for row in run.read_history())[1]
    return evaluate_embeddings(embeddings, splits.test, read.evaluation), epoch
