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

TRIALS, SECOND_TRIALS = "trials", "second-trials"


def find_best(
    spaces: CheckSpaces, validation: CrossValidation, *, trials: int, seed: int, report: Callable[[str], object]
) -> tuple[dict[str, Any], float]:
    """Search the first phase; where the recipe has a second, search that from the best trial's runs.

    Args:
        spaces: What is searched.
        validation: Trains the trials.
        trials: Of each search.
        seed: Of the first search; the second has the next one.
        report: Is called with one line per trial.

    Returns:
        The best values of both phases, by the recipe's keys, and the metric's mean over the folds with them.

    Raises:
        UserError: If no trial works, or a training fails for another reason than its hyper-parameters.
    """
    if validation.base["second_phase"] is None:
        best = _search(validation, spaces.first, trials, seed, report)
        return dict(best.parameters), best.value or 0.0
    best = _search(validation, spaces.first, trials, seed, report, flags=validation.first_phase, keep_best=True)
    flags = spaces.first.flags(best.parameters)
    recipe = read_recipe(validation.file("base"), flags, own_code=True)
    space = spaces.second(yaml.safe_load(recipe.yaml))
    if not space.dimensions:
        return dict(best.parameters), best.value or 0.0
    second = _search(
        validation,
        space,
        trials,
        seed + 1,
        lambda line: report(f"second phase, {line}"),
        flags=flags,
        first=validation.out / TRIALS / str(best.number),
    )
    return {**best.parameters, **second.parameters}, second.value or 0.0


def drop_trials(validation: CrossValidation) -> None:
    """Drop what is large of all trials, once the best is known."""
    for name in (TRIALS, SECOND_TRIALS):
        validation.drop_weights(validation.out / name)


def _search(
    validation: CrossValidation,
    space: PhaseSpace,
    trials: int,
    seed: int,
    report: Callable[[str], object],
    *,
    flags: Sequence[str] = (),
    first: Path | None = None,
    keep_best: bool = False,
) -> FinishedTrial:
    """Search one phase, the second from the trial ``first``; ``keep_best`` keeps the weights of the best so far."""
    folder = validation.out / (TRIALS if first is None else SECOND_TRIALS)
    storage = f"sqlite:///{validation.out / 'study.db'}"
    study = "reality-check" if first is None else "reality-check-second-phase"

    def evaluate(trial: Trial) -> float:
        values = (*flags, *space.flags(trial.parameters))
        try:
            return validation.evaluate(values, folder / str(trial.number), first=first)
        except FoldFailed as error:
            raise TrialFailed(str(error)) from error

    def finish(trial: FinishedTrial) -> None:
        best = best_of(finished_trials(open_study(storage, study))) if keep_best else None
        validation.drop_weights(folder, but=best and folder / str(best.number))
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
