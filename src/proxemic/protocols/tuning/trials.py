"""Trials of a search, and the sampler of their parameters."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from proxemic.extras import optional_dependency

with optional_dependency("tune"):
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
    from optuna.trial import FrozenTrial, TrialState

Sampler = Literal["tpe", "gp", "random", "grid"]
SLOT, ENDED, FAILURE = "slot", "ended", "failure"
"""User attributes of Optuna's trials: the number of the trial in the search, how it ended, and why it failed."""


class TrialFailed(Exception):
    """Raised by an objective for parameters that do not work: the failure is recorded, and the search goes on."""


@dataclass(frozen=True)
class Trial:
    """What an objective is given; numbers begin at 0, and a retried trial keeps its number.

    Choices that are lists or mappings are given as JSON text. ``report(step, value)`` raises if the trial is pruned.
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
        state = trial.user_attrs.get(ENDED, "complete")
        assert trial.duration is not None
        return cls(
            number=trial.user_attrs[SLOT],
            state=state,
            value=None if state == "failed" else trial.value,
            parameters=trial.params,
            seconds=trial.duration.total_seconds(),
            failure=trial.user_attrs.get(FAILURE, ""),
            steps=trial.last_step or 0,
        )


def finished_trials(study: optuna.Study) -> list[FinishedTrial]:
    """All trials of a study that have ended, by number."""
    over = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return sorted(map(FinishedTrial.of, over), key=lambda trial: trial.number)


def best_of(trials: Sequence[FinishedTrial]) -> FinishedTrial | None:
    """The complete trial with the largest value, the earliest of equals; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


def spent(trials: Sequence[FinishedTrial]) -> int:
    """The steps of all trials together; one that failed before its first counts as one, so that a budget ends."""
    return sum(max(1, trial.steps) for trial in trials)


def halving_rungs(steps: int) -> list[int]:
    """The steps after which successive halving compares trials: a quarter and a half of all, rounded up.

    >>> halving_rungs(20), halving_rungs(3), halving_rungs(1)
    ([5, 10], [1, 2], [])
    """
    return sorted({-(-steps // 4), -(-steps // 2)} - {steps})


class SuccessiveHalving(BasePruner):
    """At each rung, only a trial of the better half of those that came so far goes on, the first ones included.

    The asynchronous form of Optuna's `SuccessiveHalvingPruner`, with rungs at any step. It keeps no record beside
    the reported values, where Optuna's would count a trial twice that was killed and made again.
    """

    def __init__(self, rungs: Sequence[int]) -> None:
        self.rungs = rungs

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None or step not in self.rungs:
            return False
        value, alive = trial.intermediate_values[step], (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
        others = [each for each in study.get_trials(deepcopy=False, states=alive) if each.number != trial.number]
        rivals = [each.intermediate_values[step] for each in others if step in each.intermediate_values]
        return math.isnan(value) or sum(rival > value for rival in rivals) >= max(1, (len(rivals) + 1) // 2)


class SeededPerTrial(BaseSampler):
    """One of Optuna's samplers, made anew for each trial with a seed of the trial's own.

    Optuna's samplers are seeded once per process. With one seed per trial, an interrupted search goes on as it would
    have gone on, and processes that share a study do not try the same parameters. A quarter of the search's trials,
    from 3 to 10, is sampled at random before ``tpe`` or ``gp`` learns from them; the points of a grid are enqueued.
    """

    def __init__(self, sampler: Sampler, seed: int, trials: int) -> None:
        self.sampler, self.seed = sampler, seed
        self.startup = min(10, max(3, trials // 4))
        self.inner: BaseSampler = RandomSampler(seed=seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        slot = trial.user_attrs.get(SLOT, 0)  # without one, the trial is not made
        seed = int(np.random.SeedSequence([self.seed, slot]).generate_state(1)[0])
        if self.sampler == "tpe":
            self.inner = TPESampler(seed=seed, n_startup_trials=self.startup)
        elif self.sampler == "gp":
            self.inner = GPSampler(seed=seed, n_startup_trials=self.startup)
        else:
            self.inner = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)
