"""Run the trials of a study in a directory, write its files and report progress."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from proxemic.errors import Interrupted, UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_csv, write_json, write_text
from proxemic.locks import lock_in_turn
from proxemic.recipes.flags import as_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.directories import time_left
from proxemic.studies.jobs import Job, run_job
from proxemic.studies.tuning.directory import TuningOptions
from proxemic.studies.tuning.plots import draw_importance, draw_slices
from proxemic.studies.tuning.spaces import Dimension, read_space, recipe_point, trial_values
from proxemic.studies.tuning.study import (
    FinishedTrial,
    StudyOptions,
    Trial,
    TrialFailed,
    best_of,
    finished_trials,
    open_study,
    run_trials,
    spent,
)
from proxemic.tables import percent
from proxemic.training import RunDirectory

with optional_dependency("tune"):
    import optuna
with optional_dependency("train"):
    import yaml


class Search:
    """One process of the study in the directory ``out``, which tunes the full recipe ``base``.

    ``objective`` gets a trial whose parameters are values of the recipe; None trains one run. In messages, ``where`` is
    the file with the options; None takes ``tuning.json``.
    """

    def __init__(
        self,
        out: Path,
        base: Path,
        options: TuningOptions,
        report: Callable[[str], object],
        *,
        where: Path | None = None,
        metric: str | None = None,
        storage: str | None = None,
        objective: Callable[[Trial], float] | None = None,
    ) -> None:
        self.out, self.base, self.options, self.report = out, base, options, report
        self.recipe: dict[str, Any] = yaml.safe_load(base.read_text(encoding="utf-8"))
        self.metric: str = metric or self.recipe["evaluation"]["metric"]
        self.storage = storage or local_storage(out)
        self.objective = objective or self.train
        self.where = f"The search space in {where or out / 'tuning.json'}"
        epochs = self.recipe["training"]["epochs"]
        budget = None if options.budget is None else max(1, round(options.budget * epochs))
        self.study_options = StudyOptions(options.trials, budget, options.sampler, options.pruner, epochs)

    @cached_property
    def space(self) -> dict[str, Dimension]:
        """The dimensions of the search space by key of the recipe."""
        return read_space(self.options.space, self.where)

    def open(self) -> tuple[optuna.Study, bool]:
        """Open the study, and return whether it is new; `UserError` if it was begun with other settings."""
        options = self.options
        settings = {"recipe": recipe_fingerprint(self.recipe), "metric": self.metric, "space": options.space}
        settings |= {"sampler": options.sampler, "pruner": options.pruner}
        settings |= {"trials": options.trials} if options.budget is None else {"budget": self.study_options.budget}
        first = [] if options.sampler == "grid" else [recipe_point(self.recipe, self.space), *options.first]
        with lock_in_turn(self.out / ".study"):  # only one process may create the tables and the first trials
            is_new = "settings" not in open_study(self.storage, options.study).user_attrs
            return open_study(self.storage, options.study, settings, first), is_new

    def run(self, *, seed: int | None = None, alone: bool = False) -> tuple[FinishedTrial, list[FinishedTrial]]:
        """Run trials until all are finished; return the best trial and all trials.

        ``seed`` is that of the sampler of a new study; the sampler of any other process draws one.
        """
        study, is_new = self.open()
        limit = self.study_options.limit
        in_epochs = self.options.budget is not None
        count = spent if in_epochs else len
        began, before = time.monotonic(), count(finished_trials(study))

        def told(trial: FinishedTrial) -> None:
            finished = self.finished(study)
            best, failed = self.write(finished), [item for item in finished if item.state == "failed"]
            result = trial.state if trial.value is None else f"{self.metric} {percent(trial.value)}"
            result += " pruned" if trial.state == "pruned" and trial.value is not None else ""
            line = f"trial {trial.number}  {result}"
            line += f"  (best {percent(best.value)}, trial {best.number})" if best else ""
            done = count(finished)
            line += f"  {done} of {limit}{' epochs' if in_epochs else ''}"
            if done > before:
                line += f", {time_left(began, done - before, max(0, limit - done))} left"
            values = {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in self.values(trial).items()}
            self.report(
                f"{line}  {', '.join(f'{key} {value}' for key, value in values.items())}  {trial.failure}".rstrip()
            )
            if len(failed) == len(finished) >= 5:
                raise UserError(f"The first {len(finished)} trials all failed; the last: {failed[-1].failure}")

        def objective(trial: Trial) -> float:
            return self.objective(replace(trial, parameters=trial_values(trial.parameters, self.space, self.recipe)))

        run_trials(
            study, objective, self.space, self.study_options, seed=seed if is_new else None, alone=alone, on_trial=told
        )
        finished = self.finished(study)
        best = self.write(finished)
        if best is None:
            raise UserError(f"None of the {len(finished)} trials worked; the last: {finished[-1].failure or 'pruned'}")
        return best, finished

    def draw(self) -> None:
        """Plot the importance and the values of the parameters."""
        study = open_study(self.storage, self.options.study)
        draw_importance(study, self.out)
        draw_slices(finished_trials(study), self.space, self.metric, self.out)

    def values(self, trial: FinishedTrial) -> dict[str, Any]:
        """Return the values of the recipe's keys in a trial of the study."""
        return trial_values(trial.parameters, self.space, self.recipe)

    def finished(self, study: optuna.Study) -> list[FinishedTrial]:
        """Return the finished trials with the values of the recipe's keys as their parameters."""
        return [replace(trial, parameters=self.values(trial)) for trial in finished_trials(study)]

    def trial_folder(self, number: int) -> Path:
        """Return the folder of a trial as an absolute path."""
        return (self.out / "trials" / str(number)).resolve()

    def train(self, trial: Trial) -> float:
        """Train the run of a trial, or continue it; return the validation metric at the best epoch."""
        run = self.trial_folder(trial.number)
        if run.exists() and not (run / "recipe.yaml").exists():
            shutil.rmtree(run)  # its process was killed before the training
        # The value of a trial is what training reaches, even if the network before training was better.
        job = Job(self.base, as_flags({**trial.parameters, "evaluation.start": False}), run, test=False)
        try:
            result = run_job(
                job, report=lambda _: None, on_epoch=lambda row: trial.report(int(row["epoch"]), row[self.metric])
            )
        except UserError as error:
            if type(error) in (UserError, Interrupted):  # the hyper-parameters are not the cause, but a full disk, say
                raise
            # The checkpoint that the error mentions is not kept.
            reason = re.sub(r"(; (the last good|there is no) checkpoint|\. Then continue with).*", ".", str(error))
            raise TrialFailed(reason) from error
        return result["validation"][self.metric]

    def write(self, finished: Sequence[FinishedTrial]) -> FinishedTrial | None:
        """Write the trials and the best recipe, delete the weights of all other trials, and return the best trial."""
        names = list(self.space)
        header = ["trial", "state", "value", "epochs", "seconds", *names, "failure"]
        rows = [
            [item.number, item.state, item.value, item.steps, round(item.seconds, 1)]
            + [item.parameters.get(name) for name in names]
            + [item.failure]
            for item in finished
        ]
        write_csv(self.out / "trials.csv", header, rows)
        best = best_of(finished)
        for item in finished:  # the weights of all trials would fill the disk
            if item != best:
                drop_weights(self.trial_folder(item.number))
        if best is not None:
            parameters = dict(best.parameters)
            content = read_recipe(self.base, as_flags(parameters), own_code=True).yaml
            note = (
                f"# Found by proxemic: {self.metric} {best.value:.4f} on validation classes, the best of its trials.\n"
            )
            write_text(self.out / "best.yaml", note + content)
            summary = {"metric": self.metric, "value": best.value, "trial": best.number, "parameters": parameters}
            write_json(self.out / "best.json", summary)
        return best


def local_storage(out: Path) -> str:
    """Return the default URL of the study, a file in its directory."""
    return f"sqlite:///{(out / 'study.db').resolve()}"


def drop_weights(trial: Path) -> None:
    """Delete the weights of a trial's run, or runs."""
    for recipe in (*trial.glob("recipe.yaml"), *trial.glob("*/recipe.yaml")):
        RunDirectory(recipe.parent).drop_weights()


def recipe_fingerprint(base: Mapping[str, Any]) -> str:
    """Hash a recipe without the keys that may differ between the machines of a study."""
    content = json.loads(json.dumps(base))
    content.pop("published", None)
    content["data"].get("init_args", {}).pop("root", None)
    for section, key in (("batches", "workers"), ("training", "accelerator"), ("training", "threads")):
        content[section].pop(key, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
