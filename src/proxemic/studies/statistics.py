"""Means with 95% intervals, t-tests and their power, Holm's correction, and a warning about few classes."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from proxemic.extras import optional_dependency
from proxemic.tables import MISSING


@dataclass(frozen=True)
class Estimate:
    """A mean of ``n`` values and half the width of its interval; None for a single value."""

    mean: float
    half_width: float | None
    n: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether 0 is outside the interval; None if there is no interval."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


def t_interval(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """Compute the mean and its interval mean ± t·s/√n (Student's t with n - 1 degrees of freedom).

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
    """Compute the two-sided p-value of Student's t-test that the mean is 0, for two values or more.

    >>> round(t_test([0.02, 0.01, 0.03]), 4)
    0.0742
    """
    with optional_dependency("train"):
        from scipy.special import stdtr
    n, deviation = len(values), statistics.stdev(values)
    if deviation == 0:
        return float(statistics.fmean(values) == 0)
    return 2 * float(stdtr(n - 1, -abs(statistics.fmean(values)) * n**0.5 / deviation))


def power(effect: float, deviation: float, n: int, level: float = 0.05) -> float:
    """Compute the power of the two-sided t-test of n values: the probability that it finds a mean of ``effect``.

    >>> round(power(0.7, 2.0, 66), 2)
    0.8
    """
    with optional_dependency("train"):
        from scipy.special import nctdtr, stdtrit
    return 1 - float(nctdtr(n - 1, effect * math.sqrt(n) / deviation, -float(stdtrit(n - 1, level / 2))))


def found_effect(deviation: float, n: int, level: float = 0.05) -> float:
    """Return the smallest mean that n values of this standard deviation would find with 80% power.

    >>> round(found_effect(1.0, 3, 0.05 / 136), 0), round(found_effect(1.0, 10, 0.05 / 136), 1)
    (38.0, 2.1)
    """
    with optional_dependency("train"):
        from scipy.optimize import brentq
    return float(brentq(lambda effect: power(effect, deviation, n, level) - 0.8, 0, 1000 * deviation))  # pyright: ignore


def needed(deviation: float, effect: float) -> int:
    """Return the smallest number of values, at least 3, that finds an effect with 80% power.

    >>> needed(2.0, 0.7), needed(0.42, 0.7)
    (67, 6)
    """
    n = 3
    while power(effect, deviation, n) < 0.8:
        n += 1
    return n


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of m tests by Holm (1979): rejecting at 5%, the risk of any false rejection is at most 5%.

    The i-th smallest p-value is multiplied by m − i + 1, capped at 1, and raised to the value before it if smaller.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def format_estimate(estimate: Estimate | None, factor: float = 100, form: str = ".2f", width: str | None = None) -> str:
    """Format a mean with its interval, in percent unless another factor is given; a missing mean is `MISSING`.

    ``width`` is the format of half the width of the interval; None takes ``form``.

    >>> format_estimate(Estimate(0.92614, 0.00112, 5)), format_estimate(Estimate(0.5, None, 1)), format_estimate(None)
    ('92.61 ± 0.11', '50.00', '–')
    """
    if estimate is None or math.isnan(estimate.mean):
        return MISSING
    mean = f"{factor * estimate.mean:{form}}"
    return mean if estimate.half_width is None else f"{mean} ± {factor * estimate.half_width:{width or form}}"


def few_classes(classes: int) -> str:
    """Return a warning if metrics are averaged over few classes, otherwise an empty text."""
    from proxemic.metrics import FEWEST_CLASSES  # imports torch

    if classes >= FEWEST_CLASSES:
        return ""
    return (
        f"Few classes: {classes}. A search among few classes is easy (see chance), and other classes may give quite "
        f"different values; with fewer than {FEWEST_CLASSES} no honest interval can be given."
    )
