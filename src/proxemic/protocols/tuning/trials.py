"""Trials of a search, as those see them who know nothing of Optuna."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxemic.extras import optional_dependency
from proxemic.protocols.tuning.study import ENDED, FAILURE, SLOT

with optional_dependency("tune"):
    import optuna
    from optuna.trial import FrozenTrial, TrialState

__all__ = ["Finished", "Trial", "TrialFailed", "best_of", "finished", "finished_trials"]


class TrialFailed(Exception):
    """Raised by an objective for parameters that do not work: noted, and the search goes on."""


@dataclass(frozen=True)
class Trial:
    """What an objective is given.

    Args:
        number: From 0, without gaps; the same when the trial is taken up again after its process ended.
        parameters: By name; a choice that is a list or a mapping as its JSON text.
        report: To be given a step, growing, and the value at it; ends a trial that is pruned by raising.
    """

    number: int
    parameters: Mapping[str, Any]
    report: Callable[[int, float], None]


@dataclass(frozen=True)
class Finished:
    """A trial that is over.

    Args:
        number: Of the trial.
        state: ``complete``, ``pruned``, or ``failed``.
        value: The objective's, of a complete trial; else the last reported, or None.
        parameters: By name.
        seconds: From the start (of its last part, if it was taken up again) to the end.
        failure: Why it failed, one sentence.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    value: float | None
    parameters: Mapping[str, Any]
    seconds: float
    failure: str = ""


def finished_trials(study: optuna.Study) -> list[Finished]:
    """All trials that are over, by number."""
    over = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return sorted(map(finished, over), key=lambda each: each.number)


def best_of(trials: Sequence[Finished]) -> Finished | None:
    """The complete trial with the largest value, the earlier of equals; None if there is none."""
    complete = [each for each in trials if each.state == "complete"]
    return max(complete, key=lambda each: (each.value or 0.0, -each.number), default=None)


def finished(trial: FrozenTrial) -> Finished:
    """What is to be known of an Optuna trial that is over."""
    state = trial.user_attrs.get(ENDED, "complete")
    value = None if state == "failed" else trial.value
    assert trial.duration is not None
    seconds = trial.duration.total_seconds()
    return Finished(trial.user_attrs[SLOT], state, value, trial.params, seconds, trial.user_attrs.get(FAILURE, ""))
