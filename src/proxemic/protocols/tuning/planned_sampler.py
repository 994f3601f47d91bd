"""Chooses a trial's parameters by its place in the search alone, and by what is known of the others."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from proxemic.extras import optional_dependency
from proxemic.protocols.tuning.study import slot_of

with optional_dependency("tune"):
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
    from optuna.trial import FrozenTrial

__all__ = ["PlannedSampler", "Sampler"]

Sampler = Literal["tpe", "gp", "random", "grid"]


class PlannedSampler(BaseSampler):
    """The planned points first, then those of an Optuna sampler that is made anew, with a seed of its own, each time.

    So a search that was interrupted goes on as it would have gone on, and processes do not try the same.

    Args:
        plan: Parameters of the first trials; what a point leaves out is sampled.
        sampler: Of the trials after them; a grid is all plan.
        seed: Of all seeds.
        trials: Of the whole search, of which a quarter, 10 at most, is sampled at random before ``tpe`` or ``gp``
            learns from them.
    """

    def __init__(self, plan: Sequence[Mapping[str, Any]], sampler: Sampler, seed: int, trials: int) -> None:
        self.plan, self.sampler, self.seed = plan, sampler, seed
        self.startup = min(10, max(3, trials // 4))
        self.point: Mapping[str, Any] = {}
        self.inner: BaseSampler = RandomSampler(seed=seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        slot = slot_of(study.get_trials(deepcopy=False), trial.number)
        self.point = self.plan[slot] if slot < len(self.plan) else {}
        seed = int(np.random.SeedSequence([self.seed, slot]).generate_state(1)[0])
        if self.sampler == "tpe":
            self.inner = TPESampler(seed=seed, n_startup_trials=self.startup)
        elif self.sampler == "gp":
            self.inner = GPSampler(seed=seed, n_startup_trials=self.startup)
        else:
            self.inner = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if self.point else self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {} if self.point else self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if param_name in self.point:
            return self.point[param_name]
        return self.inner.sample_independent(study, trial, param_name, param_distribution)
