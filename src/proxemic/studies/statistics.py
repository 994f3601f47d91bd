"""Means with 95% intervals, tests with a correction for many, and what to say of few classes."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from proxemic.extras import optional_dependency
from proxemic.tables import MISSING


@dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its interval, which one value alone does not have."""

    mean: float
    half_width: float | None
    n: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether 0 is outside the interval; None without one."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


def t_interval(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """Return the mean of normally distributed values and its interval: mean ± t·s/√n, t of n - 1 degrees of freedom.

    >>> t_interval([0.90, 0.92, 0.91])
    Estimate(mean=0.91, half_width=0.0248..., n=3)
    """
    n, mean = len(values), statistics.fmean(values)
    if n == 1 or math.isnan(mean):
        return Estimate(mean, None, n)
    with optional_dependency("train"):
        from scipy.special import stdtrit  # quicker to import than scipy.stats
    return Estimate(mean, float(stdtrit(n - 1, (1 + confidence) / 2)) * statistics.stdev(values) / n**0.5, n)


def t_test(values: Sequence[float]) -> float:
    """Return the probability of a mean as far from 0 if the truth is 0, by Student's t, for two values or more.

    >>> round(t_test([0.02, 0.01, 0.03]), 4)
    0.0742
    """
    with optional_dependency("train"):
        from scipy.special import stdtr
    n, deviation = len(values), statistics.stdev(values)
    if deviation == 0:
        return float(statistics.fmean(values) == 0)
    return 2 * float(stdtr(n - 1, -abs(statistics.fmean(values)) * n**0.5 / deviation))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) correction: where one of m tests is below 5%, the chance of any false one is below 5%.

    The i-th smallest is multiplied by m − i + 1, is no less than those before it, and at most 1.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def format_estimate(estimate: Estimate | None, factor: float = 100) -> str:
    """Format a mean with its interval in percent, or times another factor.

    >>> format_estimate(Estimate(0.92614, 0.00112, 5)), format_estimate(Estimate(0.5, None, 1)), format_estimate(None)
    ('92.61 ± 0.11', '50.00', '–')
    """
    if estimate is None:
        return MISSING
    width = "" if estimate.half_width is None else f" ± {factor * estimate.half_width:.2f}"
    return f"{factor * estimate.mean:.2f}{width}"


def few_classes(classes: int) -> str:
    """Return a warning for metrics that are means over few classes; it is empty if there are enough."""
    from proxemic.metrics import FEWEST_CLASSES  # imports torch

    if classes >= FEWEST_CLASSES:
        return ""
    return (
        f"Few classes: {classes}. A search among so few is easy (see chance), and other classes may give quite other "
        f"values; with fewer than {FEWEST_CLASSES} no honest interval can be given."
    )
