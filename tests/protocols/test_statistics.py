"""Means with Student's intervals."""

import math

import numpy as np
import pytest

from proxemic.protocols.statistics import format_estimate, t_interval

# Student's t, 0.975, from a printed table.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10])
def test_t_interval(n: int) -> None:
    values = np.random.default_rng(n).normal(0.6, 0.01, n).tolist()
    average = sum(values) / n
    deviation = math.sqrt(sum((value - average) ** 2 for value in values) / (n - 1))
    found = t_interval(values)
    assert found.mean == pytest.approx(average, abs=1e-15)
    assert found.half_width == pytest.approx(T[n - 1] * deviation / math.sqrt(n), rel=2e-4)
    assert found.n == n


def test_t_interval_covers_the_truth_as_often_as_it_says() -> None:
    found = [t_interval(values) for values in np.random.default_rng(0).normal(0.5, 0.1, (2000, 4)).tolist()]
    covered = sum(abs(each.mean - 0.5) <= (each.half_width or 0.0) for each in found) / len(found)
    assert covered == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_interval() -> None:
    found = t_interval([0.5])
    assert (found.mean, found.half_width, found.excludes_zero) == (0.5, None, None)
    assert format_estimate(found) == "50.00"
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])
