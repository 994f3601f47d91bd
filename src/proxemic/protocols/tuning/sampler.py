"""Samples the parameters of a trial, by its number and by the results of the others."""

from typing import Any, Literal

import numpy as np

from proxemic.extras import optional_dependency
from proxemic.protocols.tuning.trials import SLOT

with optional_dependency("tune"):
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
    from optuna.trial import FrozenTrial

Sampler = Literal["tpe", "gp", "random", "grid"]


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
