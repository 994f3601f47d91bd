"""Train the folds of trials and repetitions of one loss in the reality check."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from proxemic.errors import TrainingDiverged, UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_json, write_text
from proxemic.studies.jobs import Job, Workers
from proxemic.studies.reality_check.directory import RealityCheck, all_training_classes, recipe_file
from proxemic.studies.tuning.study import Trial, TrialFailed
from proxemic.typed_json import read_typed

with optional_dependency("train"):
    import torch
    import yaml
    from torch.nn.functional import normalize

    from proxemic.recipes.flags import as_flags, read_flags
    from proxemic.recipes.reader import read_recipe
    from proxemic.runs.embed import embed_images, load_embedder, pick_device
    from proxemic.runs.evaluate import evaluate_embeddings
    from proxemic.training import EvaluationConfig, RunDirectory

Results = dict[str, dict[str, float]]
"""Metrics of one repetition by kind, see `proxemic.studies.reality_check.tables.KINDS`."""


class FoldFailed(UserError):
    """Raised if a training fails because of its hyper-parameters."""


def plan_folds(base: Mapping[str, Any], name: str, check: RealityCheck) -> dict[str, str]:
    """Return the recipes of the complete model and the folds as YAML, by name: ``complete``, ``fold-0`` and so on."""
    if str((base["optim"]["schedule"] or {}).get("class_path")).endswith("ReduceLROnPlateau"):
        raise UserError(
            f"{name} has the schedule ReduceLROnPlateau, which needs held-out classes, but the complete model has "
            "none: give another one with --optim.schedule."
        )

    def changed(data: Mapping[str, Any], size: int, select_on: str) -> dict[str, Any]:
        evaluation = {"select_on": select_on, "start": False, "untrained": False, "metric": check.metric}
        model, evaluation = base["model"] | {"embedding_size": size}, base["evaluation"] | evaluation
        return {**base, "data": data, "model": model, "evaluation": evaluation}

    complete = changed(all_training_classes(base["data"]), check.folds * check.embedding_size, "last")
    complete["training"] = base["training"] | {"until_plateau": None}
    recipes = {"complete": complete}
    for fold in range(check.folds):
        dealt = {"source": all_training_classes(base["data"]), "folds": check.folds, "fold": fold}
        data = {"class_path": "proxemic.data.Fold", "init_args": {**dealt, "split_seed": check.seed}}
        recipes[f"fold-{fold}"] = changed(data, check.embedding_size, "validation")
    EvaluationConfig(**recipes["complete"]["evaluation"])  # refuses a metric that is not computed
    return {name: yaml.safe_dump(content, sort_keys=False) for name, content in recipes.items()}


class CrossValidation:
    """Train, in a folder and with any flags, the folds of a full recipe and the model on all training classes."""

    def __init__(self, out: Path, base: str, check: RealityCheck, workers: Workers) -> None:
        self.out, self.workers, self.check = out, workers, check
        self.base: dict[str, Any] = yaml.safe_load(base)
        for name, text in plan_folds(self.base, out.name, check).items():
            write_text(recipe_file(out, name), text)
        write_text(recipe_file(out), base)

    def evaluate(self, trial: Trial) -> float:
        """Train the folds of a trial, and return the mean of the validation metric at each fold's best epoch."""
        flags, folder = as_flags(trial.parameters), self.out / "trials" / str(trial.number)
        jobs = [self._fold(fold, flags, folder, test=False) for fold in range(self.check.folds)]
        try:
            mean = fmean(result["validation"][self.check.metric] for result in self._run(jobs))
        except FoldFailed as error:
            raise TrialFailed(str(error)) from error
        trial.report(max(len(RunDirectory(job.out).read_history()) for job in jobs), mean)
        return mean

    @property
    def first_epochs(self) -> int:
        """The largest number of epochs of the first or only phase."""
        return self.base["training"]["epochs"] - (self.base["second_phase"] or {"epochs": 0})["epochs"]

    def repeat(self, number: int, flags: Sequence[str]) -> Results:
        """Train with one seed and evaluate on the test classes: separated, concatenated and complete."""
        if (kept := kept_repeat(self.out, number)) is not None:
            return kept
        folder = self.out / "repeats" / str(number)
        seeded = [*flags, "--seed", str(number)]
        jobs = [self._fold(fold, seeded, folder, test=True) for fold in range(self.check.folds)]
        folds = self._run(jobs)
        (complete,) = self._run([self._complete(folds, seeded, folder)])
        results = {
            "separated": {name: fmean(fold["test"][name] for fold in folds) for name in folds[0]["test"]},
            **concatenated([job.out for job in jobs]),
            "complete": complete["test"],
        }
        write_json(folder / "results.json", results)
        for path in (*(job.out for job in jobs), folder / "complete"):
            RunDirectory(path).drop_weights(model=False)
        return results

    def _fold(self, fold: int, flags: Sequence[str], folder: Path, *, test: bool) -> Job:
        name = f"fold-{fold}"
        return Job(recipe_file(self.out, name), tuple(flags), folder / name, test)

    def _complete(self, folds: Sequence[Mapping[str, Any]], flags: Sequence[str], folder: Path) -> Job:
        """Return the job that trains a model on all training classes, for as many epochs as the folds needed."""
        total = _rounded_up(result["epoch"] for result in folds)
        length: list[str] = []
        if self.base["second_phase"] is not None:
            first = [result["phases"][0]["epochs"] if "phases" in result else self.first_epochs for result in folds]
            second = _rounded_up(max(0, result["epoch"] - n) for result, n in zip(folds, first, strict=True))
            length = ["--second_phase.epochs", str(second)]
            if not second:  # the folds were best before the second phase: leave out that phase and its values
                values = read_flags(flags)
                flags = as_flags({key: value for key, value in values.items() if not key.startswith("second_phase")})
                length = ["--second_phase", "null"]
            total = max(total, second + 5)  # rounding up both may leave no epoch for the first
        return Job(
            recipe_file(self.out, "complete"), (*flags, *length, "--training.epochs", str(total)), folder / "complete"
        )

    def _run(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        results: dict[Path, dict[str, Any]] = {}
        failures: list[tuple[Job, Exception]] = []
        self.workers.run(
            jobs,
            on_result=lambda job, result: results.update({job.out: result}),
            on_failure=lambda job, error: failures.append((job, error)),
        )
        for job, error in failures:
            kind = FoldFailed if isinstance(error, TrainingDiverged | ValueError) else UserError
            raise kind(f"{job.out}: {error}") from error
        return [results[job.out] for job in jobs]


def kept_repeat(out: Path, number: int) -> Results | None:
    """Return the results of a repetition in the folder of a loss, or None if it is not finished."""
    file = out / "repeats" / str(number) / "results.json"
    return read_typed(file, Results) if file.exists() else None


def _rounded_up(epochs: Iterable[int]) -> int:
    """Return the mean, rounded up to a multiple of 5.

    >>> _rounded_up([3, 8]), _rounded_up([5, 5]), _rounded_up([0, 0])
    (10, 5, 0)
    """
    return 5 * math.ceil(fmean(epochs) / 5)


def concatenated(runs: Sequence[Path]) -> Results:
    """Evaluate the concatenated embeddings of several runs on the test classes, which the runs share.

    The embeddings of each run are scaled to unit length; if the network does not normalise them, they are also
    evaluated unscaled.
    """
    recipe = read_recipe(runs[0] / "recipe.yaml", own_code=True).recipe
    test = recipe.load().test_images
    size, workers = recipe.evaluation.batch_size, recipe.batches.workers
    device = pick_device(recipe.training.accelerator)
    parts = []
    for run in runs:
        model, preprocessing = load_embedder(run, recipe.model.custom_backbone)
        parts.append(embed_images(model.to(device), test, preprocessing, batch_size=size, workers=workers))
    kinds = {"concatenated": [normalize(part, dim=1) for part in parts]}
    if not recipe.model.normalize:
        kinds["concatenated unnormalized"] = parts
    return {
        kind: dict(evaluate_embeddings(torch.cat(columns, dim=1), test, recipe.evaluation))
        for kind, columns in kinds.items()
    }
