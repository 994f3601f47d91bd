"""What each process of a search does: it makes trials of all stages, writes the files and reports progress."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from proxemic.extras import optional_dependency
from proxemic.files import write_json, write_text
from proxemic.studies.tuning.directory import TuningDirectory
from proxemic.studies.tuning.plots import draw_importance, draw_slices
from proxemic.studies.tuning.search import FinishedTrial, best_of, finished_trials, search, spent
from proxemic.studies.tuning.spaces import read_stages
from proxemic.studies.tuning.stages import StageSearch, compose_best, recipe_fingerprint, shares, stage_values
from proxemic.studies.tuning.study import halving_rungs, open_study
from proxemic.tables import percent
from proxemic.training import RunDirectory

with optional_dependency("tune"):
    import optuna
with optional_dependency("train"):
    import yaml


class TuningWorker:
    """One process of a search, which makes trials of the stages one after the other.

    Args:
        out: The directory of the search.
        storage: URL of the study; None takes that in the directory.
        report: Called with a line for each trial.
        alone: Seed the sampler, so that the search can be repeated; not where several processes begin at once.
    """

    def __init__(self, out: Path, storage: str | None, report: Callable[[str], object], *, alone: bool = True) -> None:
        self.directory, self.report, self.alone = TuningDirectory(out), report, alone
        self.storage = storage or self.directory.storage
        self.options = self.directory.read()
        self.base = yaml.safe_load(self.directory.base.read_text(encoding="utf-8"))
        self.metric: str = self.base["evaluation"]["metric"]
        self.stages = read_stages(self.options.space, f"The search space {self.options.space_name}")
        trials, budget = self.options.trials, self.options.budget
        self.trials: Sequence[int | None] = [None] * len(self.stages)
        self.epochs: Sequence[int | None] = self.trials
        if budget is not None:
            self.epochs = shares(self.stages, round(budget * self.base["training"]["epochs"]))
        elif self.options.sampler != "grid" or trials is not None:
            self.trials = shares(self.stages, trials or 50)
        self.searches: list[StageSearch] = []
        self.best: list[FinishedTrial] = []

    def make_trials(self) -> None:
        """Make the trials of all stages, shared with other processes."""
        options = self.options
        for number, (stage, trials, budget) in enumerate(zip(self.stages, self.trials, self.epochs, strict=True), 1):
            carried = {name: value for trial in self.best for name, value in trial.parameters.items()}
            values = stage_values(self.base, self.stages, number, carried)
            begins = self.searches[-1].weights(self.best[-1]) if stage.from_best else []
            here = StageSearch(self.directory, number, stage, values, self.metric, options.seeds, begins)
            epochs = here.common["training"]["epochs"]
            if options.pruner == "halving":
                here = replace(here, rungs=halving_rungs(epochs))
            self.searches.append(here)
            best = search(
                here.objective,
                here.dimensions,
                storage=self.storage,
                study=self._study_name(number),
                trials=trials,
                budget=budget,
                sampler=options.sampler,
                pruner=options.pruner,
                steps=epochs,
                seed=options.seed + number - 1 if self.alone else None,
                first=[here.first(), *(options.first[number - 1] if options.first else [])],
                settings={
                    "recipe": recipe_fingerprint(self.base),
                    "metric": self.metric,
                    "fixed values": dict(stage.fixed),
                    "seeds": options.seeds,
                },
                on_trial=self._progress(number, trials if budget is None else budget),
            )
            self.best.append(best)

    def finish(self) -> tuple[FinishedTrial, tuple[tuple[FinishedTrial, ...], ...]]:
        """Write the results; return the best trial of the last stage, and the finished trials of each stage."""
        *earlier, best = self.best
        studies = [self._study(number) for number in range(1, len(self.stages) + 1)]
        finished = tuple(tuple(finished_trials(study)) for study in studies)
        self.directory.write_trials(finished)
        self._write_best(self.best)
        draw_importance(studies, self.directory.path)
        draw_slices(finished, [stage.dimensions for stage in self.searches], self.metric, self.directory.path)
        for number, trial in enumerate(earlier, 1):
            if (trial.value or 0.0) > (best.value or 0.0):
                self.report(
                    f"NOTE: stage {number} reached {self.metric} {percent(trial.value)}, more than the last stage's "
                    f"{percent(best.value)}."
                )
        return best, finished

    def _study_name(self, number: int) -> str:
        return f"{self.options.study}-{number}"

    def _study(self, number: int) -> optuna.Study:
        return open_study(self.storage, self._study_name(number))

    def _write_best(self, best: Sequence[FinishedTrial]) -> None:
        """Write the best recipe, and the best trial of each stage so far."""
        content = compose_best(self.searches, best)
        value = best[-1].value
        note = f"# Found by proxemic tune: {self.metric} {value:.4f} on validation classes, the best of its trials.\n"
        write_text(self.directory.best_recipe, note + yaml.safe_dump(content, sort_keys=False))
        stages = [{"trial": f"{number}-{trial.number}", **asdict(trial)} for number, trial in enumerate(best, 1)]
        summary = {"metric": self.metric, "value": value, "trial": stages[-1]["trial"]}
        summary |= {"parameters": dict(best[-1].parameters), "stages": stages}
        write_json(self.directory.path / "best.json", summary)

    def _progress(self, number: int, wanted: int | None) -> Callable[[FinishedTrial], None]:
        """Make the function that writes and reports after each trial of a stage that this process made."""
        study, in_epochs = self._study(number), self.options.budget is not None
        done = spent if in_epochs else len
        began, before = time.monotonic(), done(finished_trials(study))
        stages = [finished_trials(self._study(earlier)) for earlier in range(1, number)]

        def note(trial: FinishedTrial) -> None:
            finished = finished_trials(study)
            best = best_of(finished)
            self.directory.write_trials([*stages, finished])
            for each in finished:  # the weights of all trials would fill a disk
                if best is None or each.number != best.number:
                    for run in self.directory.runs(number, each.number, self.options.seeds):
                        RunDirectory(run).drop_weights()
            if best is not None and best.number == trial.number:
                self._write_best([*self.best, best])
            result = trial.state if trial.value is None else f"{self.metric} {percent(trial.value)}"
            result += " pruned" if trial.state == "pruned" and trial.value is not None else ""
            line = f"trial {number}-{trial.number}  {result}"
            if best is not None:
                line += f"  (best {percent(best.value)}, trial {number}-{best.number})"
            line += f"  {done(finished)} of {wanted or 'the grid'}" + (" epochs" if in_epochs else "")
            if wanted is not None and done(finished) > before:
                left = max(0, wanted - done(finished))
                seconds = (time.monotonic() - began) / (done(finished) - before) * left
                line += f", {seconds:.0f} s left" if seconds < 100 else f", {seconds / 60:.0f} min left"
            shown = (
                f"{name} {f'{each:.4g}' if isinstance(each, float) else each}"
                for name, each in trial.parameters.items()
            )
            self.report(f"{line}  {', '.join(shown)}  {trial.failure}".rstrip())

        return note
