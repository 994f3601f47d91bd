"""Means over seeds with their 95% intervals, and differences paired by seed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxemic.extras import extra
from proxemic.protocols.comparison_directory import Result

__all__ = ["Estimate", "difference", "mean", "t_interval"]


@dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its 95% interval, which one value alone does not have."""

    mean: float
    half_width: float | None
    n: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether 0 is outside of the interval; None without one."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values and its 95% interval: mean ± t·s/√n, t the 0.975 quantile with n - 1 degrees.

    It holds for values that are normally distributed, such as a metric over seeds about is.

    Raises:
        ValueError: If there is no value.

    >>> t_interval([0.90, 0.92, 0.91])
    Estimate(mean=0.91, half_width=0.0248..., n=3)
    """
    n = len(values)
    if n == 0:
        raise ValueError("values is empty; a mean needs at least one")
    mean = statistics.fmean(values)
    if n == 1:
        return Estimate(mean, None, 1)
    with extra("train"):
        from scipy.special import stdtrit  # quicker to import than scipy.stats
    return Estimate(mean, float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / n**0.5, n)


def mean(results: Mapping[int, Result], metric: str, split: str = "test") -> Estimate | None:
    """Of a metric over the seeds that are finished and have it; None where none has."""
    values = _values(results, metric, split)
    return t_interval(list(values.values())) if values else None


def difference(results: Mapping[int, Result], baseline: Mapping[int, Result], metric: str) -> Estimate | None:
    """How much a metric of the test exceeds the baseline's with the same seed; None without a seed that both have."""
    first, second = _values(results, metric, "test"), _values(baseline, metric, "test")
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    return t_interval(differences) if differences else None


def _values(results: Mapping[int, Result], metric: str, split: str) -> dict[int, float]:
    found = {seed: result.values.get(split, {}).get(metric) for seed, result in results.items()}
    return {seed: value for seed, value in found.items() if value is not None}
