"""Train the trials of all stages in one process of a search, write the files and report progress."""

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from proxemic.errors import Interrupted, UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_json, write_text
from proxemic.locks import lock_in_turn
from proxemic.recipes.flags import as_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.directories import time_left
from proxemic.studies.jobs import Job, check_stopped, run_job
from proxemic.studies.tuning.directory import TuningDirectory
from proxemic.studies.tuning.plots import draw_importance, draw_slices
from proxemic.studies.tuning.search import (
    FinishedTrial,
    Trial,
    TrialFailed,
    best_of,
    finished_trials,
    halving_rungs,
    open_study,
    search,
    spent,
)
from proxemic.studies.tuning.spaces import Choices, Range, Stage, read_stages, recipe_value
from proxemic.studies.tuning.stages import as_choice, first_values, recipe_fingerprint, shares, stage_values
from proxemic.tables import percent
from proxemic.training import RunDirectory

with optional_dependency("tune"):
    import optuna
with optional_dependency("train"):
    import yaml


class TuningWorker:
    """One process of a search: it makes trials stage by stage, and reports each trial in a line.

    With ``alone``, the sampler is seeded, so that a search in one process can be repeated.
    """

    def __init__(self, out: Path, storage: str | None, report: Callable[[str], object], *, alone: bool = True) -> None:
        self.directory, self.report, self.alone = TuningDirectory(out), report, alone
        self.storage = storage or self.directory.storage
        self.options = self.directory.read()
        self.base = yaml.safe_load(self.directory.base.read_text(encoding="utf-8"))
        self.metric: str = self.base["evaluation"]["metric"]
        self.stages = read_stages(self.options.space, f"The search space {self.options.space_name}")
        self.searches: list[StageSearch] = []
        self.best: list[FinishedTrial] = []

    def make_trials(self) -> None:
        """Make the trials of all stages, together with other processes."""
        options = self.options
        in_epochs, limits = options.budget is not None, list[int | None]([None] * len(self.stages))
        if options.budget is not None:
            limits = [*shares(self.stages, round(options.budget * self.base["training"]["epochs"]))]
        elif options.sampler != "grid" or options.trials is not None:
            limits = [*shares(self.stages, options.trials or 50)]
        for number, (stage, limit) in enumerate(zip(self.stages, limits, strict=True), 1):
            carried = {name: value for trial in self.best for name, value in trial.parameters.items()}
            values = stage_values(self.base, self.stages, number, carried)
            begins = self.searches[-1].weights(self.best[-1]) if stage.from_best else []
            here = StageSearch(self.directory, number, stage, values, self.metric, options.seeds, begins)
            epochs = here.common["training"]["epochs"]
            if options.pruner == "halving":
                here = replace(here, rungs=halving_rungs(epochs))
            self.searches.append(here)
            fixed = {"fixed values": dict(stage.fixed), "seeds": options.seeds}
            best = search(
                here.objective,
                here.dimensions,
                storage=self.storage,
                study=f"{options.study}-{number}",
                trials=None if in_epochs else limit,
                budget=limit if in_epochs else None,
                sampler=options.sampler,
                pruner=options.pruner,
                steps=epochs,
                seed=options.seed + number - 1 if self.alone else None,
                first=[here.first(), *(options.first[number - 1] if options.first else [])],
                settings={"recipe": recipe_fingerprint(self.base), "metric": self.metric} | fixed,
                on_trial=self._progress(limit),
            )
            self.best.append(best)

    def finish(self) -> tuple[FinishedTrial, tuple[tuple[FinishedTrial, ...], ...]]:
        """Write the results, and return the best trial of the last stage and all finished trials by stage."""
        *earlier, best = self.best
        finished = tuple(map(tuple, map(finished_trials, self._studies())))
        self.directory.write_trials(finished)
        self._write_best(self.best)
        draw_importance(self._studies(), self.directory.path)
        draw_slices(finished, [stage.dimensions for stage in self.searches], self.metric, self.directory.path)
        for number, trial in enumerate(earlier, 1):
            if (trial.value or 0.0) > (best.value or 0.0):
                self.report(
                    f"NOTE: stage {number} reached {self.metric} {percent(trial.value)}, more than the last stage's "
                    f"{percent(best.value)}."
                )
        return best, finished

    def _studies(self) -> list[optuna.Study]:
        """Open the studies of the stages up to now."""
        names = [f"{self.options.study}-{stage.number}" for stage in self.searches]
        return [open_study(self.storage, name) for name in names]

    def _write_best(self, best: Sequence[FinishedTrial]) -> None:
        """Write the best recipe, and the best trial of each stage up to now."""
        content = compose_best(self.searches, best)
        value = best[-1].value
        note = f"# Found by proxemic tune: {self.metric} {value:.4f} on validation classes, the best of its trials.\n"
        write_text(self.directory.best_recipe, note + yaml.safe_dump(content, sort_keys=False))
        stages = [{"trial": f"{number}-{trial.number}", **asdict(trial)} for number, trial in enumerate(best, 1)]
        summary = {"metric": self.metric, "value": value, "trial": stages[-1]["trial"]}
        summary |= {"parameters": dict(best[-1].parameters), "stages": stages}
        write_json(self.directory.path / "best.json", summary)

    def _progress(self, limit: int | None) -> Callable[[FinishedTrial], None]:
        """Return a function that writes the files and reports after each trial of the current stage."""
        number, in_epochs = len(self.searches), self.options.budget is not None
        done = spent if in_epochs else len
        began, before = time.monotonic(), done(finished_trials(self._studies()[-1]))

        def note(trial: FinishedTrial) -> None:
            *earlier, finished = map(finished_trials, self._studies())
            self.directory.write_trials([*earlier, finished])
            best, count = best_of(finished), done(finished)
            for item in finished:  # the weights of all trials would fill the disk
                for run in self.directory.runs(number, item.number, self.options.seeds) if item != best else ():
                    RunDirectory(run).drop_weights()
            if best is not None and best.number == trial.number:
                self._write_best([*self.best, best])
            result = trial.state if trial.value is None else f"{self.metric} {percent(trial.value)}"
            result += " pruned" if trial.state == "pruned" and trial.value is not None else ""
            line = f"trial {number}-{trial.number}  {result}"
            line += f"  (best {percent(best.value)}, trial {number}-{best.number})" if best else ""
            line += f"  {count} of {limit or 'the grid'}{' epochs' if in_epochs else ''}"
            if limit is not None and count > before:
                line += f", {time_left(began, count - before, max(0, limit - count))} left"
            values = {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in trial.parameters.items()}
            shown = ", ".join(f"{key} {value}" for key, value in values.items())
            self.report(f"{line}  {shown}  {trial.failure}".rstrip())

        return note


@dataclass(frozen=True)
class StageSearch:
    """A stage (numbered from 1) of a search, with the values that its trials share and the metric to maximise."""

    directory: TuningDirectory
    number: int
    stage: Stage
    values: Mapping[str, Any]
    metric: str
    seeds: int = 1
    begins: Sequence[Path] = ()
    """For each seed, the run whose weights the trials start from; empty if they start from the beginning."""
    rungs: Sequence[int] = ()
    """The epochs after which a trial of several seeds is compared with other trials."""

    def recipe(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a trial's recipe."""
        flags = as_flags({**self.values, **parameters})
        return yaml.safe_load(read_recipe(self.directory.base, flags, own_code=True).yaml)

    @cached_property
    def common(self) -> dict[str, Any]:
        """The content of the recipe without a trial's parameters."""
        return self.recipe({})

    @cached_property
    def dimensions(self) -> dict[str, Range | Choices]:
        return self.stage.dimensions(self.common)

    def first(self) -> dict[str, Any]:
        """Return the values of the first trial: the recipe's own, and in a second phase those of that phase."""
        values = {name: as_choice(recipe_value(self.common, name)) for name in self.stage.search}
        base = yaml.safe_load(self.directory.base.read_text(encoding="utf-8"))
        return values | (first_values(base, [self.stage])[0] if self.stage.from_best else {})

    def objective(self, trial: Trial) -> float:
        """Train a trial with each seed; return the mean of the validation metric at the best epochs."""
        runs = self.directory.runs(self.number, trial.number, self.seeds)
        for run in runs:
            if run.exists() and not (run / "recipe.yaml").exists():
                shutil.rmtree(run)  # its process was killed before the training
        try:
            results = self._train_together(runs, trial) if self.seeds > 1 else [self._train_alone(runs[0], trial)]
        except UserError as error:
            if type(error) in (UserError, Interrupted):  # the hyper-parameters are not the cause, but a full disk, say
                raise
            # The checkpoint that the error mentions is not kept.
            reason = re.sub(r"(; (the last good|there is no) checkpoint|\. Then continue with).*", ".", str(error))
            raise TrialFailed(reason) from error
        return fmean(result["validation"][self.metric] for result in results)

    def weights(self, best: FinishedTrial) -> list[Path]:
        """Return the run directories of the best trial; train it again if they are not on this machine."""
        runs = self.directory.runs(self.number, best.number, self.seeds)
        with lock_in_turn(self.directory.path / ".best"):  # one process trains, the others wait
            for seed, run in enumerate(runs):
                if not ((run / "metrics.json").exists() and (run / "loss.safetensors").exists()):
                    if (run / "metrics.json").exists() or not (run / "recipe.yaml").exists():
                        shutil.rmtree(run, ignore_errors=True)
                    self._train(run, seed, best.parameters)
        return runs

    def _train_alone(self, run: Path, trial: Trial) -> dict[str, Any]:
        return self._train(run, 0, trial.parameters, lambda row: trial.report(int(row["epoch"]), row[self.metric]))

    def _train_together(self, runs: Sequence[Path], trial: Trial) -> list[dict[str, Any]]:
        """Train the runs of all seeds up to each rung in turn, and then to the end."""
        epochs = self.common["training"]["epochs"]
        for rung in [rung for rung in self.rungs if rung < epochs]:
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
        # The value of a trial is what training reaches, even if the network before training was better.
        values = {**self.values, **parameters, "evaluation.start": False}
        if self.begins:
            values["training.start_from"] = str(self.begins[seed])
        if self.seeds > 1:
            values["seed"] = self.common["seed"] + seed
        job = Job(self.directory.base, as_flags(values), run, test=False)
        return run_job(job, report=lambda _: None, on_epoch=on_epoch)


class _Paused(Exception):
    """Raised after the epoch of a rung, where a run waits for the runs of the other seeds."""


def _pause(rung: int, row: Mapping[str, float]) -> None:
    check_stopped()
    if row["epoch"] >= rung:
        raise _Paused


def compose_best(searches: Sequence[StageSearch], best: Sequence[FinishedTrial]) -> dict[str, Any]:
    """Return the content of the best recipe: one run that repeats the best trials of all stages."""
    content = searches[-1].recipe(best[-1].parameters)
    if not searches[-1].stage.from_best:
        return content
    before = searches[-2].recipe(best[-2].parameters)
    # The last stage started with the weights of the chosen epoch.
    chosen = round(fmean(RunDirectory(start).read_metrics()["epoch"] for start in searches[-1].begins))
    epochs = content["training"]["epochs"]
    before["training"]["epochs"] = chosen + epochs
    before["second_phase"] = {"epochs": epochs, "loss": content["loss"], "optim": content["optim"]}
    return before
