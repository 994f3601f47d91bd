"""Means with 95% intervals, differences of paired values, and what to say of few classes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxemic.extras import optional_dependency
from proxemic.tables import MISSING


@dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its 95% interval; one value alone has no interval."""

    mean: float
    half_width: float | None
    n: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether 0 is outside of the interval; None without one."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values and its 95% interval: mean ± t·s/√n, t the 0.975 quantile with n - 1 degrees.

    It holds for normally distributed values, which a metric over seeds approximately is.

    Raises:
        ValueError: If there is no value.

    >>> t_interval([0.90, 0.92, 0.91])
    Estimate(mean=0.91, half_width=0.0248..., n=3)
    """
    n = len(values)
    if n == 0:
        raise ValueError("values is empty; a mean needs at least one")
    mean = statistics.fmean(values)
    if n == 1 or math.isnan(mean):
        return Estimate(mean, None, n)
    with optional_dependency("train"):
        from scipy.special import stdtrit  # quicker to import than scipy.stats
    return Estimate(mean, float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / n**0.5, n)


def paired_by_seed(values: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate | None:
    """By how much values exceed those of the baseline with the same seed; None without a common seed.

    >>> paired_by_seed({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.8, 1: 0.6})
    Estimate(mean=0.15..., half_width=0.635..., n=2)
    """
    differences = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    return t_interval(differences) if differences else None


def format_estimate(estimate: Estimate | None, factor: float = 100) -> str:
    """In percent, or times another factor; without an interval where there is one value.

    >>> format_estimate(Estimate(0.92614, 0.00112, 5)), format_estimate(Estimate(0.5, None, 1)), format_estimate(None)
    ('92.61 ± 0.11', '50.00', '–')
    """
    if estimate is None:
        return MISSING
    width = "" if estimate.half_width is None else f" ± {factor * estimate.half_width:.2f}"
    return f"{factor * estimate.mean:.2f}{width}"


def few_classes(classes: int) -> str:
    """What to tell whoever sees metrics that are means over so few classes; empty where there are enough."""
    from proxemic.metrics import FEWEST_CLASSES  # imports torch

    if classes >= FEWEST_CLASSES:
        return ""
    return (
        f"Few classes: {classes}. A search among so few is easy (see chance), and other classes may give quite other "
        f"values; with fewer than {FEWEST_CLASSES} no honest interval can be given."
    )
