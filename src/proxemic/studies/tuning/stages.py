"""The stages of a search: the recipes of their trials, and the values that each stage begins with."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from proxemic.errors import Interrupted, UserError
from proxemic.extras import optional_dependency
from proxemic.locks import lock_in_turn
from proxemic.recipes.flags import as_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.jobs import Job, check_stopped, run_job
from proxemic.studies.tuning.directory import TuningDirectory
from proxemic.studies.tuning.search import FinishedTrial, Trial, TrialFailed
from proxemic.studies.tuning.spaces import Choices, Range, Stage, recipe_value
from proxemic.training import RunDirectory

with optional_dependency("train"):
    import yaml


def shares(stages: Sequence[Stage], total: int) -> list[int]:
    """Divide a number of trials, or of epochs, among the stages, of which each has one at least.

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
        {name: _plain(value) for name in stage.search if (value := recipe_value(phase, name)) is not None}
        for stage, phase in zip(stages, phases, strict=True)
    ]


def _plain(value: Any) -> Any:
    """Return a value as `Choices` hold it."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def stage_values(
    base: Mapping[str, Any], stages: Sequence[Stage], number: int, carried: Mapping[str, Any]
) -> dict[str, Any]:
    """Values of the recipe that all trials of a stage (from 1) have, with the best ones carried over from those before.

    Where the last stage begins with weights of the stage before, these two are the phases of the best recipe: of the
    recipe's own second phase, only the number of epochs is taken.
    """
    stage = stages[number - 1]
    values: dict[str, Any] = {}
    if stages[-1].from_best and base.get("second_phase"):
        epochs = base["second_phase"]["epochs"]
        rest = base["training"]["epochs"] - epochs
        values = {"second_phase": None, "training.epochs": epochs if stage.from_best else rest}
    if stage.from_best:
        values["training.warmup_epochs"] = 0  # as of a second phase, which this will be
    return {**values, **carried, **stage.fixed}


def check_stages(recipe: Path, flags: Sequence[str], stages: Sequence[Stage], name: str) -> None:
    """Read one recipe of each stage, so that a key that it lacks is reported before anything is written."""
    base = yaml.safe_load(read_recipe(recipe, flags, own_code=True).yaml)
    carried: dict[str, Any] = {}
    for number in range(1, len(stages) + 1):
        values = stage_values(base, stages, number, carried)
        try:
            content = yaml.safe_load(read_recipe(recipe, (*flags, *as_flags(values)), own_code=True).yaml)
            dimensions = stages[number - 1].dimensions(content)
            point = {name: each.values()[len(each.values()) // 2] for name, each in dimensions.items()}
            _ = read_recipe(recipe, (*flags, *as_flags(values), *as_flags(point)), own_code=True).recipe
        except (UserError, ValueError) as error:
            raise UserError(f"The search space {name}, stage {number}, does not fit the recipe: {error}") from error
        carried |= point


def recipe_fingerprint(base: Mapping[str, Any]) -> str:
    """Hash a recipe without what changes no result or may differ between the machines that share a search."""
    content = json.loads(json.dumps(base))
    content.pop("published", None)
    content["data"].get("init_args", {}).pop("root", None)
    for section, key in (("batches", "workers"), ("training", "accelerator"), ("training", "threads")):
        content[section].pop(key, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class StageSearch:
    """One stage (from 1) of a search, with the values that its trials share and the metric that it maximises."""

    directory: TuningDirectory
    number: int
    stage: Stage
    values: Mapping[str, Any]
    metric: str
    seeds: int = 1
    begins: Sequence[Path] = ()
    """For each seed, the run whose weights the trials begin with; none if they begin anew."""
    rungs: Sequence[int] = ()
    """The epochs after which the runs of a trial of several seeds wait for each other, to be compared with others."""

    def recipe(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Content of the recipe of a trial."""
        flags = as_flags({**self.values, **parameters})
        return yaml.safe_load(read_recipe(self.directory.base, flags, own_code=True).yaml)

    @cached_property
    def common(self) -> dict[str, Any]:
        """Content of the recipe before a trial's parameters are applied."""
        return self.recipe({})

    @cached_property
    def dimensions(self) -> dict[str, Range | Choices]:
        return self.stage.dimensions(self.common)

    def first(self) -> dict[str, Any]:
        """Return the recipe's own values, for the first trial; in a second phase, with the best of the first."""
        values = {name: _plain(recipe_value(self.common, name)) for name in self.stage.search}
        base = yaml.safe_load(self.directory.base.read_text(encoding="utf-8"))
        return values | (first_values(base, [self.stage])[0] if self.stage.from_best else {})

    def objective(self, trial: Trial) -> float:
        """Train one recipe with each seed; the mean of the metric on the validation classes at the best epochs."""
        runs = self.directory.runs(self.number, trial.number, self.seeds)
        for run in runs:
            if run.exists() and not (run / "recipe.yaml").exists():
                shutil.rmtree(run)  # killed before it began
        try:
            if self.seeds > 1:
                results = self._train_together(runs, trial)
            else:
                report = partial(_report_epoch, trial, self.metric)
                results = [self._train(runs[0], 0, trial.parameters, report)]
        except UserError as error:
            if type(error) in (UserError, Interrupted):  # not due to the hyper-parameters, but to a full disk, say
                raise
            # The checkpoint of which it speaks is not kept.
            reason = re.sub(r"(; (the last good|there is no) checkpoint|\. Then continue with).*", ".", str(error))
            raise TrialFailed(reason) from error
        return fmean(result["validation"][self.metric] for result in results)

    def weights(self, best: FinishedTrial) -> list[Path]:
        """Return the run directories of this stage's best trial, trained again if they are not on this machine."""
        runs = self.directory.runs(self.number, best.number, self.seeds)
        with lock_in_turn(self.directory.path / ".best"):  # one process trains them, the others wait
            for seed, run in enumerate(runs):
                if not ((run / "metrics.json").exists() and (run / "loss.safetensors").exists()):
                    if (run / "metrics.json").exists() or not (run / "recipe.yaml").exists():
                        shutil.rmtree(run, ignore_errors=True)
                    self._train(run, seed, best.parameters)
        return runs

    def _train_together(self, runs: Sequence[Path], trial: Trial) -> list[dict[str, Any]]:
        """Train the runs of all seeds, up to one rung after the other, and then to their ends."""
        epochs = self.common["training"]["epochs"]
        for rung in [each for each in self.rungs if each < epochs]:
            for seed, run in enumerate(runs):
                if len(RunDirectory(run).read_history()) < rung:
                    with suppress(_Paused):
                        self._train(run, seed, trial.parameters, partial(_pause, rung))
            histories = [RunDirectory(run).read_history() for run in runs]
            trial.report(rung, fmean(rows[min(rung, len(rows)) - 1][self.metric] for rows in histories))
        results = [self._train(run, seed, trial.parameters, lambda _: check_stopped()) for seed, run in enumerate(runs)]
        trial.report(epochs, fmean(RunDirectory(run).read_history()[-1][self.metric] for run in runs))
        return results

    def _train(
        self,
        run: Path,
        seed: int,
        parameters: Mapping[str, Any],
        on_epoch: Callable[[Mapping[str, float]], object] | None = None,
    ) -> dict[str, Any]:
        # A trial is worth what its training reaches: where that is less than the start, by how much is worth knowing.
        values = {**self.values, **parameters, "evaluation.start": False}
        if self.begins:
            values["training.start_from"] = str(self.begins[seed])
        if self.seeds > 1:
            values["seed"] = self.common["seed"] + seed
        job = Job(self.directory.base, as_flags(values), run, test=False)
        return run_job(job, report=lambda _: None, on_epoch=on_epoch)


class _Paused(Exception):
    """Raised after the epoch of a rung; the run goes on once those of the other seeds have come there, too."""


def _report_epoch(trial: Trial, metric: str, row: Mapping[str, float]) -> None:
    trial.report(int(row["epoch"]), row[metric])


def _pause(rung: int, row: Mapping[str, float]) -> None:
    check_stopped()
    if row["epoch"] >= rung:
        raise _Paused


def compose_best(searches: Sequence[StageSearch], best: Sequence[FinishedTrial]) -> dict[str, Any]:
    """Content of the best recipe, which trains in one run what the best trials of the stages so far reached."""
    content = searches[-1].recipe(best[-1].parameters)
    if not searches[-1].stage.from_best:
        return content
    before = searches[-2].recipe(best[-2].parameters)
    # The weights that the last stage began with are those of the epoch that was chosen.
    chosen = round(fmean(RunDirectory(start).read_metrics()["epoch"] for start in searches[-1].begins))
    epochs = content["training"]["epochs"]
    before["training"]["epochs"] = chosen + epochs
    before["second_phase"] = {"epochs": epochs, "loss": content["loss"], "optim": content["optim"]}
    return before
