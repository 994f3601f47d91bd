"""Means with 95% intervals, differences of paired values, and what to say of few classes."""

import math
import statistics
from collections.abc import Sequence
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
        """Whether 0 is outside the interval; None without one."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of normally distributed values and its 95% interval: mean ± t·s/√n, t of n - 1 degrees of freedom.

    >>> t_interval([0.90, 0.92, 0.91])
    Estimate(mean=0.91, half_width=0.0248..., n=3)
    """
    n, mean = len(values), statistics.fmean(values)
    if n == 1 or math.isnan(mean):
        return Estimate(mean, None, n)
    with optional_dependency("train"):
        from scipy.special import stdtrit  # quicker to import than scipy.stats
    return Estimate(mean, float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / n**0.5, n)


def format_estimate(estimate: Estimate | None, factor: float = 100) -> str:
    """In percent, or times another factor.

    >>> format_estimate(Estimate(0.92614, 0.00112, 5)), format_estimate(Estimate(0.5, None, 1)), format_estimate(None)
    ('92.61 ± 0.11', '50.00', '–')
    """
    if estimate is None:
        return MISSING
    width = "" if estimate.half_width is None else f" ± {factor * estimate.half_width:.2f}"
    return f"{factor * estimate.mean:.2f}{width}"


def few_classes(classes: int) -> str:
    """A warning for metrics that are means over few classes; empty where there are enough."""
    from proxemic.metrics import FEWEST_CLASSES  # imports torch

    if classes >= FEWEST_CLASSES:
        return ""
    return (
        f"Few classes: {classes}. A search among so few is easy (see chance), and other classes may give quite other "
        f"values; with fewer than {FEWEST_CLASSES} no honest interval can be given."
    )
