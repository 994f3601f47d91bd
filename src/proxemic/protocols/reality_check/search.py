"""The searches of a reality check: of the first phase, then of the second from the best of the first."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proxemic.extras import optional_dependency
from proxemic.protocols.reality_check.cross_validation import CrossValidation, FoldFailed
from proxemic.protocols.reality_check.spaces import CheckSpaces, PhaseSpace
from proxemic.protocols.tuning.search import search
from proxemic.protocols.tuning.study import open_study
from proxemic.protocols.tuning.trials import FinishedTrial, Trial, TrialFailed, best_of, finished_trials
from proxemic.recipes.reader import read_recipe

with optional_dependency("train"):
    import yaml


def find_best(
    spaces: CheckSpaces, validation: CrossValidation, *, trials: int, seed: int, report: Callable[[str], object]
) -> tuple[dict[str, Any], float]:
    """Search the first phase, and then the second, if the recipe has one, from the runs of the best trial.

    Returns the best values of both phases, by the recipe's keys, and the mean of the metric over the folds with them.
    """
    two_phases = validation.base["second_phase"] is not None
    flags = ("--second_phase=null", f"--training.epochs={validation.first_epochs}") if two_phases else ()
    best = _search(validation, spaces.first, trials, seed, report, flags)
    found = dict(best.parameters)
    if two_phases:
        flags = spaces.first.flags(found)
        space = spaces.second(yaml.safe_load(read_recipe(validation.file("base"), flags, own_code=True).yaml))
        if space.dimensions:
            first = validation.out / "trials" / str(best.number)
            best = _search(
                validation, space, trials, seed + 1, lambda line: report(f"second phase, {line}"), flags, first
            )
    return {**found, **best.parameters}, best.value or 0.0


def _search(
    validation: CrossValidation,
    space: PhaseSpace,
    trials: int,
    seed: int,
    report: Callable[[str], object],
    flags: Sequence[str],
    first: Path | None = None,
) -> FinishedTrial:
    """Search one phase; the second one goes on with the runs of the trial ``first``."""
    folder = validation.out / ("trials" if first is None else "second-trials")
    storage = f"sqlite:///{validation.out / 'study.db'}"
    study = "reality-check" if first is None else "reality-check-second-phase"

    def evaluate(trial: Trial) -> float:
        values = (*flags, *space.flags(trial.parameters))
        try:
            return validation.evaluate(values, folder / str(trial.number), first=first)
        except FoldFailed as error:
            raise TrialFailed(str(error)) from error

    def finish(trial: FinishedTrial) -> None:
        best = best_of(finished_trials(open_study(storage, study)))
        validation.drop_weights(folder.name, but=best and folder / str(best.number))
        value = trial.failure if trial.value is None else f"{validation.metric} {trial.value:.4f}"
        report(f"trial {trial.number + 1}/{trials}, {validation.folds} folds, {trial.seconds:.0f} s: {value}")

    return search(
        evaluate,
        space.dimensions,
        storage=storage,
        study=study,
        trials=trials,
        seed=seed,
        first=space.initial,
        on_trial=finish,
    )
