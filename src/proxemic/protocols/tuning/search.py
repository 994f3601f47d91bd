"""A search for the best parameters, by one process or by many that share a study."""

import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxemic.errors import Interrupted, UserError
from proxemic.extras import optional_dependency
from proxemic.protocols.runs.jobs import check_stopped
from proxemic.protocols.tuning.spaces import Choices, Range, grid_points
from proxemic.protocols.tuning.study import (
    PROCESS,
    agree,
    fail_dead_trials,
    open_study,
    process_mark,
    quiet,
    storage_at_work,
)
from proxemic.protocols.tuning.trials import (
    ENDED,
    FAILURE,
    SLOT,
    FinishedTrial,
    Sampler,
    SeededPerTrial,
    SuccessiveHalving,
    Trial,
    TrialFailed,
    best_of,
    finished_trials,
    halving_rungs,
    spent,
)

with optional_dependency("tune"):
    import optuna
    from optuna.trial import FrozenTrial, TrialState

Pruner = Literal["halving", "median", "none"]

POLL = 0.5
"""Seconds between looks at what other processes do."""


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
    seed: int = 0,
    first: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    on_trial: Callable[[FinishedTrial], object] | None = None,
) -> FinishedTrial:
    """Maximise an objective and return the best trial; calls with the same storage and study share the trials.

    All return when the study has its number of trials, pruned and failed ones included; None makes 50, or all points of
    a grid. With a ``budget``, which takes the place of ``trials``, no trial begins once all of them together have made
    as many steps; one that is not pruned has ``steps``. What the objective raises ends the search in this process,
    except for `TrialFailed`. The trial of a process that is stopped or killed is retried by another one, or by the next
    call, with the same number and parameters.

    ``first`` are parameters of the first trials, moved into the dimensions where they lie outside, and not used in a
    grid; ``settings`` is what else all processes must agree on; ``on_trial`` is given each trial that this process
    finished.
    """
    plan = grid_points(dimensions) if sampler == "grid" else _first_points(first, dimensions)
    total = (trials or 50) if sampler != "grid" else min(trials or len(plan), len(plan))
    limit = total if budget is None else _Budget(budget, steps)
    known = {"search": {name: repr(each) for name, each in dimensions.items()}, "seed": seed}
    known |= {"trials": total} if budget is None else {"budget": budget}
    try:
        with storage_at_work(storage), quiet():
            shared = open_study(storage, study, _pruner(pruner, steps))
            agree(shared, known | {"sampler": sampler, "pruner": pruner} | dict(settings or {}))
            shared.sampler = SeededPerTrial(sampler, seed, total if budget is None else budget // steps)
            _Search(shared, objective, dimensions, plan, limit, on_trial, stand_in=sampler == "gp").make_trials()
            done = finished_trials(shared)
    except KeyboardInterrupt:
        raise Interrupted("Stopped: the same call goes on with the search.") from None
    best = best_of(done)
    if best is None:
        raise UserError(f"None of the {len(done)} trials worked; the last: {done[-1].failure or 'pruned'}")
    return best


def _first_points(
    first: Sequence[Mapping[str, Any]], dimensions: Mapping[str, Range | Choices]
) -> list[dict[str, Any]]:
    """The parameters of the first trials, each once, without what the dimensions have not."""
    points: list[dict[str, Any]] = []
    for given in first or ({},):
        near = {name: each.nearest(given[name]) for name, each in dimensions.items() if name in given}
        point = {name: value for name, value in near.items() if value is not None}
        if point not in points:
            points.append(point)
    return points


def _pruner(pruner: Pruner, steps: int) -> optuna.pruners.BasePruner | None:
    if pruner == "halving":
        return SuccessiveHalving(halving_rungs(steps))
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=steps // 4) if pruner == "median" else None


@dataclass(frozen=True)
class _Budget:
    """So many steps of all trials together; a trial that is not pruned has ``each``."""

    steps: int
    each: int


class _Surplus(Exception):
    """Raised in a trial that another process makes, too."""


@dataclass(frozen=True)
class _Search:
    """The part of a search that one process does."""

    study: optuna.Study
    objective: Callable[[Trial], float]
    dimensions: Mapping[str, Range | Choices]
    plan: Sequence[Mapping[str, Any]]
    limit: int | _Budget
    """The number of trials, or the steps of all of them together."""
    on_trial: Callable[[FinishedTrial], object] | None
    stand_in: bool
    """Give trials without a value one: the Gaussian process knows nothing of pruned and failed trials, and would sample
    their parameters over and over."""

    def make_trials(self) -> None:
        """Make trials until all are made; wait for those of other processes, and retry them if these die.

        The trials are enqueued one by one under their numbers. Optuna's `MaxTrialsCallback` counts trials that have
        ended, so that processes which share a study would begin more than ``total``.
        """
        while True:
            check_stopped()
            fail_dead_trials(self.study)
            states = {trial.state for trial in self.trials()}
            if TrialState.WAITING in states or self.enqueue():
                trial = self.make_one()
                if trial is not None and trial.state != TrialState.FAIL:
                    if self.on_trial is not None:
                        self.on_trial(FinishedTrial.of(trial))
                    done = finished_trials(self.study)
                    if len(done) >= 5 and all(trial.state == "failed" for trial in done):
                        raise UserError(f"The first {len(done)} trials all failed; the last: {done[-1].failure}")
            elif TrialState.RUNNING in states:
                time.sleep(POLL)
            else:
                return

    def trials(self) -> list[FrozenTrial]:
        """All of Optuna's trials, by Optuna's numbers."""
        return self.study.get_trials(deepcopy=False)

    def enqueue(self) -> bool:
        """Enqueue the first trial that is neither made nor under way; False if there is none."""
        trials = self.trials()
        made = {trial.user_attrs.get(SLOT) for trial in trials if trial.state != TrialState.FAIL}
        slot = next(slot for slot in itertools.count() if slot not in made)
        begun = any(trial.user_attrs.get(SLOT) == slot for trial in trials)
        if not begun and not self.allows(slot):
            return False
        if before := [trial for trial in trials if trial.user_attrs.get(SLOT) == slot]:
            failed = copy.deepcopy(max(before, key=lambda trial: len(trial.params)))  # of two, the one that was made
            failed.user_attrs = {SLOT: slot}  # not the process that is dead
            optuna.storages.RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)(self.study, failed)
        else:
            self.study.enqueue_trial(dict(self.plan[slot]) if slot < len(self.plan) else {}, {SLOT: slot})
        return True

    def allows(self, slot: int) -> bool:
        """Whether a trial of this number is still to be begun."""
        if isinstance(self.limit, int):
            return slot < self.limit
        under_way = sum(trial.state == TrialState.RUNNING for trial in self.trials())  # which may all be made whole
        return spent(finished_trials(self.study)) + under_way * self.limit.each < self.limit.steps

    def make_one(self) -> FrozenTrial | None:
        """Make the waiting trial; None if another process took it over because this one seemed dead."""
        number = -1

        def evaluate(trial: optuna.Trial) -> float:
            nonlocal number
            number = trial.number
            return self.evaluate(trial)

        try:
            self.study.optimize(evaluate, n_trials=1, catch=(_Surplus,))
        except UserError:
            raise
        except Exception:
            mine, *later = self.trials()[number:]
            if number >= 0 and any(trial.user_attrs.get(SLOT) == mine.user_attrs.get(SLOT) for trial in later):
                return None
            raise
        return self.trials()[number]

    def evaluate(self, trial: optuna.Trial) -> float:
        """The objective as Optuna calls it."""
        trial.set_user_attr(PROCESS, process_mark())
        *before, frozen = self.trials()[: trial.number + 1]
        slot = frozen.user_attrs.get(SLOT)
        if slot is None or any(each.user_attrs.get(SLOT) == slot and each.state != TrialState.FAIL for each in before):
            raise _Surplus  # two processes enqueued the same one, or took the same one from the queue
        known = set(frozen.intermediate_values)

        def report(step: int, value: float) -> None:
            check_stopped()
            if step not in known:
                known.add(step)
                trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Fixed parameter", UserWarning)  # one between the steps of a range
            parameters = {name: _suggest(trial, name, each) for name, each in self.dimensions.items()}
        try:
            value = self.objective(Trial(slot, parameters, report))
            if not math.isfinite(value):
                raise TrialFailed(f"The value is {value}.")
            return value
        except optuna.TrialPruned:
            trial.set_user_attr(ENDED, "pruned")
            values = self.trials()[trial.number].intermediate_values
            if self.stand_in and values:
                return values[max(values)]
        except TrialFailed as error:
            trial.set_user_attr(ENDED, "failed")
            trial.set_user_attr(FAILURE, str(error))
        if self.stand_in:  # the worst of the others
            return min((each.value for each in self.trials() if each.value is not None), default=0.0)
        raise optuna.TrialPruned  # not failed in Optuna's sense, of which no sampler learns anything


def _suggest(trial: optuna.Trial, name: str, dimension: Range | Choices) -> Any:
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, dimension.choices)
    low, high, step, log = dimension.low, dimension.high, dimension.step, dimension.log
    if dimension.integer:
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=log)
    return trial.suggest_float(name, low, high, step=step, log=log)
