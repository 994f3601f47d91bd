"""What each process of a search for hyper-parameters does: its stages, its files, its lines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from proxemic.extras import optional_dependency
from proxemic.files import write_json, write_text
from proxemic.protocols.tuning.directory import TuningDirectory, TuningOptions
from proxemic.protocols.tuning.plots import draw_importance, draw_slices
from proxemic.protocols.tuning.search import search
from proxemic.protocols.tuning.spaces import read_stages
from proxemic.protocols.tuning.stages import StageSearch, budgets, compose_best, fingerprint, stage_values
from proxemic.protocols.tuning.study import open_study
from proxemic.protocols.tuning.trials import Finished, best_of, finished_trials

with optional_dependency("tune"):
    import optuna
with optional_dependency("train"):
    import yaml

__all__ = ["TuningSearch"]


class TuningSearch:
    """The stages one after the other, as one process sees them.

    Args:
        directory: That keeps what is found.
        options: What is searched, and how.
        storage: Optuna storage URL, password and all.
        report: Is given a line a trial.
    """

    def __init__(
        self, directory: TuningDirectory, options: TuningOptions, storage: str, report: Callable[[str], object]
    ) -> None:
        self.directory, self.options, self.storage, self.report = directory, options, storage, report
        self.base = yaml.safe_load(directory.base.read_text(encoding="utf-8"))
        self.metric: str = self.base["evaluation"]["metric"]
        self.stages = read_stages(options.space, f"The search space {options.space_name}")
        many = options.sampler == "grid" and options.trials is None
        self.totals = [None] * len(self.stages) if many else budgets(self.stages, options.trials or 50)
        self.searches: list[StageSearch] = []
        self.found: list[Finished] = []

    def make_trials(self) -> None:
        """All stages, shared with other processes."""
        for number in range(1, len(self.stages) + 1):
            self._run_stage(number)

    def finish(self) -> Finished:
        """Write what was found; the best trial of the last stage."""
        best = self.found[-1]
        finished = [finished_trials(self.study(number)) for number in range(1, len(self.stages) + 1)]
        self.directory.write_trials(finished)
        self._write()
        draw_importance([self.study(number) for number in range(1, len(finished) + 1)], self.directory.path)
        draw_slices(finished, [each.dimensions() for each in self.searches], self.metric, self.directory.path)
        for number, earlier in enumerate(self.found[:-1], 1):
            if _value(earlier) > _value(best):
                self.report(
                    f"NOTE: stage {number} came to {self.metric} {_value(earlier):.4f}, more than the last stage's "
                    f"{_value(best):.4f}."
                )
        return best

    def _run_stage(self, number: int) -> None:
        stage = self.stages[number - 1]
        carried = {name: value for each in self.found for name, value in each.parameters.items()}
        values = stage_values(self.base, self.stages, number, carried)
        if stage.from_best:
            values["training.start_from"] = str(self.searches[-1].weights(self.found[-1]))
        self.searches.append(StageSearch(self.directory, number, stage, values, self.metric))
        progress = _Progress(self, number)
        best = search(
            self.searches[-1].objective,
            self.searches[-1].dimensions(),
            storage=self.storage,
            study=self._name(number),
            trials=self.totals[number - 1],
            sampler=self.options.sampler,
            pruner=self.options.pruner,
            pruner_warmup=self.searches[-1].common["training"]["epochs"] // 4,
            seed=self.options.seed + number - 1,
            first=self.searches[-1].first(),
            settings={"recipe": fingerprint(self.base), "metric": self.metric, "fixed values": dict(stage.fixed)},
            on_trial=progress,
        )
        self.found.append(best)

    def _name(self, number: int) -> str:
        return f"{self.options.study}-{number}"

    def study(self, number: int) -> optuna.Study:
        """That of a stage."""
        return open_study(self.storage, self._name(number))

    def note(self, number: int, trial: Finished, finished: Sequence[Finished], best: Finished | None) -> None:
        """Write what is known after a trial of this process."""
        before = [finished_trials(self.study(each)) for each in range(1, number)]
        self.directory.write_trials([*before, finished])
        self.directory.drop_weights(number, finished, best.number if best else None)
        if best is not None and best.number == trial.number:
            self._write(best)

    def _write(self, best: Finished | None = None) -> None:
        found = [*self.found, best] if best else self.found
        content = compose_best(self.searches, found)
        value, last = _value(found[-1]), len(found)
        comment = (
            f"# Found by proxemic tune: {self.metric} {value:.4f} on validation classes, the best of its trials.\n"
        )
        write_text(self.directory.best_recipe, comment + yaml.safe_dump(content, sort_keys=False))
        stages = [{"trial": f"{n}-{each.number}", **asdict(each)} for n, each in enumerate(found, 1)]
        best_trial = {"metric": self.metric, "value": value, "trial": f"{last}-{found[-1].number}"}
        parameters = dict(found[-1].parameters)
        write_json(self.directory.best, best_trial | {"parameters": parameters, "stages": stages})


class _Progress:
    """A line a trial."""

    def __init__(self, owner: TuningSearch, number: int) -> None:
        self.owner, self.number = owner, number
        self.shared = owner.study(number)
        self.total = owner.totals[number - 1]
        self.began, self.before = time.monotonic(), len(finished_trials(self.shared))

    def __call__(self, trial: Finished) -> None:
        finished = finished_trials(self.shared)
        best = best_of(finished)
        self.owner.note(self.number, trial, finished, best)
        metric = self.owner.metric
        what = trial.state if trial.value is None else f"{metric} {trial.value:.4f}"
        what += " pruned" if trial.state == "pruned" and trial.value is not None else ""
        line = f"trial {self.number}-{trial.number}  {what}"
        if best is not None:
            line += f"  (best {_value(best):.4f}, trial {self.number}-{best.number})"
        values = ", ".join(f"{name} {_short(value)}" for name, value in trial.parameters.items())
        line += f"  {len(finished)} of {self.total or 'the grid'}{self._left(len(finished))}  {values}"
        self.owner.report(f"{line}  {trial.failure}".rstrip())

    def _left(self, finished: int) -> str:
        if self.total is None or finished <= self.before:
            return ""
        seconds = (time.monotonic() - self.began) / (finished - self.before) * (self.total - finished)
        return f", {seconds:.0f} s left" if seconds < 100 else f", {seconds / 60:.0f} min left"


def _value(trial: Finished) -> float:
    assert trial.value is not None
    return trial.value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
