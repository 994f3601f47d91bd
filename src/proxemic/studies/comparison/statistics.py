"""Compute means over seeds with 95% intervals, differences paired by seed, and the variation over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxemic.studies.comparison.directory import Result
from proxemic.studies.statistics import Estimate, t_interval


@dataclass(frozen=True)
class SeedVariation:
    """Standard deviations of a metric over seeds (root mean square over recipes) and of the recipes' means.

    ``ratio`` compares the standard deviation over seeds with that of another metric: the geometric mean over the ``n``
    recipes with two seeds or more, and its 95% interval (Student's t of the logarithms).
    """

    seeds: float
    recipes: float
    ratio: tuple[float, float, float] | None
    n: int

    @property
    def separability(self) -> float:
        """The standard deviation of the recipes' means divided by that over seeds."""
        return self.recipes / self.seeds if self.seeds else math.inf


def mean(results: Mapping[int, Result], metric: str, split: str = "test") -> Estimate | None:
    """Return the mean of a metric over the seeds that have it, or None."""
    values = metric_values(results, metric, split)
    return t_interval(list(values.values())) if values else None


def difference(results: Mapping[int, Result], baseline: Mapping[int, Result], metric: str) -> Estimate | None:
    """Return the difference of a test metric from the baseline's, paired by seed; None without a common seed."""
    base = metric_values(baseline, metric)
    pairs = [value - base[seed] for seed, value in metric_values(results, metric).items() if seed in base]
    return t_interval(pairs) if pairs else None


def seed_variation(results: Sequence[Mapping[int, Result]], metric: str, against: str) -> SeedVariation | None:
    """Return the variation of a test metric, compared with ``against``; None without two recipes of two seeds each."""
    pairs = [[list(metric_values(result, name).values()) for name in (metric, against)] for result in results]
    pairs = [(values, unit) for values, unit in pairs if len(values) > 1]
    if len(pairs) < 2:
        return None
    deviations = [statistics.stdev(values) for values, _ in pairs]
    units = [statistics.stdev(unit) if len(unit) > 1 else 0.0 for _, unit in pairs]
    ratio = None
    if metric != against and all(deviations) and all(units):
        log_ratio = t_interval([math.log(one / unit) for one, unit in zip(deviations, units, strict=True)])
        assert log_ratio.half_width is not None
        low, high = log_ratio.mean - log_ratio.half_width, log_ratio.mean + log_ratio.half_width
        ratio = (math.exp(log_ratio.mean), math.exp(low), math.exp(high))
    over_recipes = statistics.stdev(statistics.fmean(values) for values, _ in pairs)
    return SeedVariation(
        statistics.fmean(deviation**2 for deviation in deviations) ** 0.5, over_recipes, ratio, len(pairs)
    )


def metric_values(results: Mapping[int, Result], metric: str, split: str = "test") -> dict[int, float]:
    """Return the values of a metric by seed, for the seeds that have it."""
    values = {seed: result.values.get(split, {}).get(metric) for seed, result in results.items()}
    return {seed: value for seed, value in values.items() if value is not None}
