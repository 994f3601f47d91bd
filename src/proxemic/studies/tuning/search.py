"""A search for the best parameters, by one process or by several that share an Optuna study."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.studies.jobs import check_stopped
from proxemic.studies.tuning.spaces import Choices, Range
from proxemic.studies.tuning.study import (
    GRACE,
    RETRY,
    Pruner,
    Sampler,
    agree,
    at_work,
    beaten,
    has_heartbeats,
    make_pruner,
    make_sampler,
    open_study,
)

with optional_dependency("tune"):
    import optuna
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import FrozenTrial, TrialState

POLL = 0.5
"""Seconds between looks at the trials of other processes."""
ENDED, FAILURE = "ended", "failure"
"""User attributes of Optuna's trials: how they ended, unless their state says it, and why they failed."""


class TrialFailed(Exception):
    """Raised by an objective, like a `ValueError`, for parameters that do not work: the search goes on."""


@dataclass(frozen=True)
class Trial:
    """What an objective is given; a retried trial keeps its number.

    Choices that are lists or mappings are given as JSON text. ``report(step, value)`` raises if the trial is pruned.
    """

    number: int
    parameters: Mapping[str, Any]
    report: Callable[[int, float], None]


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that has ended.

    Args:
        number: From 0; a number is missing where a trial was retried, which keeps the number of its first attempt.
        state: How it ended.
        value: The objective's value if the trial is complete, else the last one that was reported, or None.
        parameters: By the recipe's keys.
        seconds: Duration, of the last attempt if the trial was retried.
        failure: Why it failed, in one sentence.
        steps: The last step of which it reported a value, such as the last epoch that was trained; 0 for none.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    value: float | None
    parameters: Mapping[str, Any]
    seconds: float
    failure: str = ""
    steps: int = 0

    @classmethod
    def of(cls, trial: FrozenTrial) -> "FinishedTrial":
        """Read one of Optuna's trials that have ended."""
        state = trial.user_attrs.get(ENDED, "complete" if trial.state == TrialState.COMPLETE else "pruned")
        assert trial.duration is not None
        return cls(
            number=_number(trial),
            state=state,
            value=None if state == "failed" else trial.value,
            parameters=trial.params,
            seconds=trial.duration.total_seconds(),
            failure=trial.user_attrs.get(FAILURE, ""),
            steps=trial.last_step or 0,
        )


def finished_trials(study: optuna.Study) -> list[FinishedTrial]:
    """Return all trials of a study that have ended, by number."""
    over = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return sorted(map(FinishedTrial.of, over), key=lambda trial: trial.number)


def best_of(trials: Sequence[FinishedTrial]) -> FinishedTrial | None:
    """Return the complete trial with the largest value, the earliest of equals; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


def spent(trials: Sequence[FinishedTrial]) -> int:
    """Return the steps of all trials; one that failed before its first step counts as one, so that a budget ends."""
    return sum(max(1, trial.steps) for trial in trials)


def search(
    objective: Callable[[Trial], float],
    dimensions: Mapping[str, Range | Choices],
    *,
    storage: str,
    study: str,
    trials: int | None = 50,
    budget: int | None = None,
    sampler: Sampler = "tpe",
    pruner: Pruner = "none",
    steps: int = 1,
    seed: int | None = 0,
    first: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    alone: bool = False,
    on_trial: Callable[[FinishedTrial], object] | None = None,
) -> FinishedTrial:
    """Maximise an objective and return the best trial; calls with the same storage and study share the trials.

    All return when the study has its number of trials, pruned and failed ones included; a grid has at most as many as
    it has points. With a ``budget``, which is given instead of ``trials``, no trial begins once all of them together
    have made that many steps. What the objective raises, except for `TrialFailed` and `ValueError`, ends the search in
    this process; its trial, like that of a process that is killed, is then made again with the same number and
    parameters.

    Args:
        objective: Returns the value of a trial.
        dimensions: What is searched, by name.
        storage: Optuna storage URL.
        study: Name of the study there.
        trials: Number of trials of all processes; None makes all points of a grid.
        budget: Steps of all trials together.
        sampler: How parameters are chosen.
        pruner: What stops a trial early by the values that it reports.
        steps: The steps of a trial that is not pruned.
        seed: Seed of the sampler; None draws one. For the same seed, one process makes the same trials again, unless
            the search was interrupted.
        first: Parameters of the first trials, moved into the dimensions where they lie outside; not used in a grid.
        settings: What else all processes must agree on.
        alone: No other process works on the study, so that running trials are those of a killed one.
        on_trial: Called with each trial that this process finished.
    """
    total = trials or 50
    if sampler == "grid":
        points = math.prod(len(each.values()) for each in dimensions.values())
        total = min(trials or points, points)
    known = {"search": {name: repr(each) for name, each in dimensions.items()}}
    known |= {"trials": total} if budget is None else {"budget": budget}
    with at_work(storage):
        shared = open_study(storage, study)
        agree(shared, known | {"sampler": sampler, "pruner": pruner} | dict(settings or {}))
        expected = total if budget is None else budget // steps
        shared.sampler = make_sampler(sampler, dimensions, expected, None if shared.get_trials() else seed)
        shared.pruner = make_pruner(pruner, steps)
        for point in _points(first, dimensions) if sampler != "grid" else ():
            shared.enqueue_trial(point, skip_if_exists=True)
        for trial in shared.get_trials(states=(TrialState.RUNNING,)) if alone else ():
            shared.tell(trial.number, state=TrialState.FAIL)
            RETRY(shared, trial)
        noticed, is_gp = has_heartbeats(storage), sampler == "gp"
        own = _Search(shared, objective, dimensions, steps, noticed, learns_nothing_from_failures=is_gp)
        while True:
            check_stopped()
            done, under_way = finished_trials(shared), _under_way(shared) if noticed else 0
            if len(done) >= 5 and all(trial.state == "failed" for trial in done):
                raise UserError(f"The first {len(done)} trials all failed; the last: {done[-1].failure}")
            # Optuna's `MaxTrialsCallback` counts neither steps nor the trials that are under way, and would not wait.
            begun = len(done) + under_way if budget is None else spent(done) + under_way * steps
            if begun < (total if budget is None else budget):
                trial = own.make_trial()
                if trial is not None and on_trial is not None:
                    on_trial(trial)
            elif under_way:
                time.sleep(POLL)
            else:
                break
    best = best_of(done)
    if best is None:
        raise UserError(f"None of the {len(done)} trials worked; the last: {done[-1].failure or 'pruned'}")
    return best


def _points(first: Sequence[Mapping[str, Any]], dimensions: Mapping[str, Range | Choices]) -> list[dict[str, Any]]:
    """Return the parameters of the first trials as far as there are such dimensions."""
    points = []
    for given in first:
        near = {name: each.nearest(given[name]) for name, each in dimensions.items() if name in given}
        points.append({name: value for name, value in near.items() if value is not None})
    return points


def _under_way(study: optuna.Study) -> int:
    """Count the running trials; fail those of dead processes, and retry them if they had begun."""
    optuna.storages.fail_stale_trials(study)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in running:
        assert trial.datetime_start is not None
        if not trial.params and datetime.now() - trial.datetime_start > timedelta(seconds=GRACE):
            with suppress(ValueError, UpdateFinishedTrialError):  # another process was quicker
                study.tell(trial.number, state=TrialState.FAIL)  # killed before its first heartbeat
    return len(running)


@dataclass(frozen=True)
class _Search:
    """The part of a search that one process does."""

    study: optuna.Study
    objective: Callable[[Trial], float]
    dimensions: Mapping[str, Range | Choices]
    steps: int
    has_heartbeats: bool
    learns_nothing_from_failures: bool
    """Whether trials without a value get one, as the sampler would try their parameters over and over."""

    def make_trial(self) -> FinishedTrial | None:
        """Make the next trial; None where this process seemed dead, and another one has taken over its trial."""
        numbers: list[int] = []
        beaten.clear()

        def evaluate(trial: optuna.Trial) -> float:
            numbers.append(trial.number)
            return self._evaluate(trial)

        try:
            self.study.optimize(evaluate, n_trials=1)
        except (UpdateFinishedTrialError, ValueError):  # a ValueError of the objective does not come here
            if not numbers:
                raise
            return None
        return FinishedTrial.of(self._read(numbers[0]))

    def _read(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    def _evaluate(self, trial: optuna.Trial) -> float:
        """Compute the objective as Optuna calls it."""

        def report(step: int, value: float) -> None:
            check_stopped()
            trial.report(value, step)
            if step < self.steps and trial.should_prune():
                raise optuna.TrialPruned

        try:
            if self.has_heartbeats and not beaten.wait(GRACE):
                raise RuntimeError("it takes no heartbeats")
            parameters = {name: _suggest(trial, name, each) for name, each in self.dimensions.items()}
            value = self.objective(Trial(_number(self._read(trial.number)), parameters, report))
            if not math.isfinite(value):
                raise TrialFailed(f"The value is {value}.")
            return value
        except optuna.TrialPruned:
            if not self.learns_nothing_from_failures:
                raise
            trial.set_user_attr(ENDED, "pruned")
            reported = self._read(trial.number).intermediate_values
            return reported[max(reported)]
        except (TrialFailed, ValueError) as error:
            trial.set_user_attr(ENDED, "failed")
            trial.set_user_attr(FAILURE, " ".join(str(error).split()))
            if not self.learns_nothing_from_failures:
                raise optuna.TrialPruned from error  # not failed in Optuna's sense, of which no sampler learns anything
            return min((each.value for each in self.study.get_trials() if each.value is not None), default=0.0)
        except BaseException:  # the disk is full, or the user stops the search: the trial is made again
            if (frozen := self._read(trial.number)).state == TrialState.RUNNING:
                RETRY(self.study, frozen)
            raise


def _number(trial: FrozenTrial) -> int:
    """Return the number of a trial; if it was retried, that of its first attempt, which Optuna's callback records."""
    return trial.system_attrs.get("failed_trial", trial.number)


def _suggest(trial: optuna.Trial, name: str, dimension: Range | Choices) -> Any:
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, dimension.choices)
    low, high, step, log = dimension.low, dimension.high, dimension.step, dimension.log
    if dimension.integer:
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=log)
    return trial.suggest_float(name, low, high, step=step, log=log)
