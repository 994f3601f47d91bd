"""Compute means over seeds with 95% intervals, differences paired by seed, and the variation over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxemic.studies.comparison.directory import Result
from proxemic.studies.statistics import Estimate, t_interval
from proxemic.tables import MISSING


@dataclass(frozen=True)
class SeedVariation:
    """Standard deviations of a metric over seeds (root mean square over recipes) and of the recipes' means.

    ``ratio`` is the standard deviation over seeds divided by that of another metric: the geometric mean over the ``n``
    recipes with two seeds or more. ``interval`` is its 95% interval (Student's t of the logarithms). It is None if, by
    its own interval, the mean standard deviation of either metric may be 0: the ratio could then be any number.
    """

    seeds: float
    recipes: float
    ratio: float | None
    interval: tuple[float, float] | None
    n: int

    @property
    def separability(self) -> float:
        """The standard deviation of the recipes' means divided by that over seeds."""
        return self.recipes / self.seeds if self.seeds else math.inf

    def ratio_text(self) -> str:
        """Format the ratio, with its interval if there is one."""
        if self.ratio is None:
            return MISSING
        return f"{self.ratio:.2f}" + (" ({:.2f} to {:.2f})".format(*self.interval) if self.interval else "")


def mean(results: Mapping[int, Result], metric: str, split: str = "test") -> Estimate | None:
    """Return the mean of a metric over the seeds that have it, or None."""
    values = metric_values(results, metric, split)
    return t_interval(list(values.values())) if values else None


def difference(results: Mapping[int, Result], baseline: Mapping[int, Result], metric: str) -> Estimate | None:
    """Return the difference of a test metric from the baseline's, paired by seed; None without a common seed."""
    pairs = paired_differences(results, baseline, metric)
    return t_interval(pairs) if pairs else None


def paired_differences(results: Mapping[int, Result], baseline: Mapping[int, Result], metric: str) -> list[float]:
    """Return the differences of a test metric from the baseline's for each common seed."""
    base = metric_values(baseline, metric)
    return [value - base[seed] for seed, value in metric_values(results, metric).items() if seed in base]


def seed_variation(results: Sequence[Mapping[int, Result]], metric: str, against: str) -> SeedVariation | None:
    """Return the variation of a test metric, compared with ``against``; None without two recipes of two seeds each."""
    pairs = [[list(metric_values(result, name).values()) for name in (metric, against)] for result in results]
    pairs = [(values, unit) for values, unit in pairs if len(values) > 1]
    if len(pairs) < 2:
        return None
    deviations = [statistics.stdev(values) for values, _ in pairs]
    units = [statistics.stdev(unit) if len(unit) > 1 else 0.0 for _, unit in pairs]
    ratio = interval = None
    if metric != against and all(deviations) and all(units):
        found = t_interval([math.log(one / unit) for one, unit in zip(deviations, units, strict=True)])
        assert found.half_width is not None
        ratio = math.exp(found.mean)
        if t_interval(deviations).excludes_zero and t_interval(units).excludes_zero:
            interval = (math.exp(found.mean - found.half_width), math.exp(found.mean + found.half_width))
    over_recipes = statistics.stdev(statistics.fmean(values) for values, _ in pairs)
    over_seeds = statistics.fmean(deviation**2 for deviation in deviations) ** 0.5
    return SeedVariation(over_seeds, over_recipes, ratio, interval, len(pairs))


def metric_values(results: Mapping[int, Result], metric: str, split: str = "test") -> dict[int, float]:
    """Return the values of a metric by seed, for the seeds that have it."""
    values = {seed: result.values.get(split, {}).get(metric) for seed, result in results.items()}
    return {seed: value for seed, value in values.items() if value is not None}
