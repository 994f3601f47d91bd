"""The searches of a reality check: of the first phase, then of the second from the best of the first."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proxemic.extras import optional_dependency
from proxemic.protocols.reality_check.cross_validation import CrossValidation, FoldFailed
from proxemic.protocols.tuning.joint_space import CheckSpaces, PhaseSpace
from proxemic.protocols.tuning.search import Finished, Trial, TrialFailed, search
from proxemic.protocols.tuning.study import open_study
from proxemic.protocols.tuning.trials import best_of, finished_trials
from proxemic.recipes.reader import read_recipe

with optional_dependency("train"):
    import yaml

__all__ = ["drop_trials", "find_best"]

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
        report: Is given a line a trial.

    Returns:
        The best values of both phases, by the recipe's keys, and the metric's mean over the folds with them.

    Raises:
        UserError: If no trial works, or a training fails for another reason than its hyper-parameters.
    """
    two = validation.base["second_phase"] is not None
    alone = validation.first_phase if two else ()
    best = _search(_Phase(spaces.first, validation, TRIALS, alone, keep_best=two), trials, seed, report)
    if not two:
        return dict(best.parameters), best.value or 0.0
    flags = spaces.first.flags(best.parameters)
    recipe = read_recipe(validation.file("base"), flags, own_code=True)
    space = spaces.second(yaml.safe_load(recipe.yaml))
    if not space.dimensions:
        return dict(best.parameters), best.value or 0.0
    first = validation.out / TRIALS / str(best.number)
    phase = _Phase(space, validation, SECOND_TRIALS, flags, first=first)
    found = _search(phase, trials, seed + 1, lambda line: report(f"second phase, {line}"))
    return {**best.parameters, **found.parameters}, found.value or 0.0


def drop_trials(validation: CrossValidation) -> None:
    """Drop what is large of all trials, once the best is known."""
    for name in (TRIALS, SECOND_TRIALS):
        validation.drop_weights(validation.out / name)


class _Phase:
    """A search of one phase.

    Args:
        space: What is varied.
        validation: Trains.
        folder: Of the trials.
        flags: That all trials have besides.
        first: The trial of the first phase that these go on with.
        keep_best: Keep the weights of the best trial so far.
    """

    def __init__(
        self,
        space: PhaseSpace,
        validation: CrossValidation,
        folder: str,
        flags: Sequence[str],
        *,
        first: Path | None = None,
        keep_best: bool = False,
    ) -> None:
        self.space, self.validation, self.folder = space, validation, validation.out / folder
        self.flags, self.first, self.keep_best = flags, first, keep_best
        self.storage = f"sqlite:///{validation.out / 'study.db'}"
        self.study = "reality-check" if first is None else "reality-check-second-phase"

    def evaluate(self, trial: Trial) -> float:
        flags = (*self.flags, *self.space.flags(trial.parameters))
        try:
            return self.validation.evaluate(flags, self.folder / str(trial.number), first=self.first)
        except FoldFailed as error:
            raise TrialFailed(str(error)) from error

    def drop_weights(self) -> None:
        best = best_of(finished_trials(open_study(self.storage, self.study))) if self.keep_best else None
        self.validation.drop_weights(self.folder, but=best and self.folder / str(best.number))


def _search(phase: _Phase, trials: int, seed: int, report: Callable[[str], object]) -> Finished:
    validation = phase.validation

    def tell(trial: Finished) -> None:
        phase.drop_weights()
        value = trial.failure if trial.value is None else f"{validation.metric} {trial.value:.4f}"
        report(f"trial {trial.number + 1}/{trials}, {validation.folds} folds, {trial.seconds:.0f} s: {value}")

    return search(
        phase.evaluate,
        phase.space.dimensions,
        storage=phase.storage,
        study=phase.study,
        trials=trials,
        seed=seed,
        first=phase.space.own,
        on_trial=tell,
    )
