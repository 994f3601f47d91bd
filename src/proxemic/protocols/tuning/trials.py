"""Trials of a search, with nothing of Optuna's in their interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxemic.extras import optional_dependency

with optional_dependency("tune"):
    import optuna
    from optuna.trial import FrozenTrial, TrialState

SLOT, ENDED, FAILURE = "slot", "ended", "failure"
"""User attributes of Optuna's trials: the number of the trial in the search, how it ended, and why it failed."""


class TrialFailed(Exception):
    """Raised by an objective for parameters that do not work: the failure is recorded, and the search goes on."""


@dataclass(frozen=True)
class Trial:
    """What an objective is given; numbers are from 0 without gaps, and a retried trial keeps its number.

    A choice that is a list or a mapping is given as its JSON text. ``report`` takes a step and the value at it, and
    raises if the trial is pruned.
    """

    number: int
    parameters: Mapping[str, Any]
    report: Callable[[int, float], None]


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that has ended.

    Args:
        number: From 0, without gaps.
        state: How it ended.
        value: The objective's value if the trial is complete, else the last one that was reported, or None.
        parameters: By the recipe's keys.
        seconds: Duration, of the last attempt if the trial was retried.
        failure: Why it failed, in one sentence.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    value: float | None
    parameters: Mapping[str, Any]
    seconds: float
    failure: str = ""

    @classmethod
    def of(cls, trial: FrozenTrial) -> "FinishedTrial":
        """Read one of Optuna's trials that have ended."""
        state = trial.user_attrs.get(ENDED, "complete")
        assert trial.duration is not None
        return cls(
            number=trial.user_attrs[SLOT],
            state=state,
            value=None if state == "failed" else trial.value,
            parameters=trial.params,
            seconds=trial.duration.total_seconds(),
            failure=trial.user_attrs.get(FAILURE, ""),
        )


def finished_trials(study: optuna.Study) -> list[FinishedTrial]:
    """All trials of a study that have ended, by number."""
    over = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return sorted(map(FinishedTrial.of, over), key=lambda trial: trial.number)


def best_of(trials: Sequence[FinishedTrial]) -> FinishedTrial | None:
    """The complete trial with the largest value, the earliest of equals; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)
