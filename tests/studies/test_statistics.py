"""Means with Student's intervals."""

import itertools
import math

import numpy as np
import pytest

from proxemic.studies.statistics import format_estimate, holm, t_interval, t_test

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


def test_one_value_has_no_interval() -> None:
    found = t_interval([0.5])
    assert (found.mean, found.half_width, found.excludes_zero) == (0.5, None, None)
    assert format_estimate(found) == "50.00"
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_t_test_agrees_with_the_interval(n: int) -> None:
    """A mean at the end of its 95% interval has a probability of 5%."""
    values = np.random.default_rng(n).normal(0.0, 0.01, n)
    width = t_interval(values.tolist()).half_width
    assert width is not None
    assert t_test((values - values.mean() + width).tolist()) == pytest.approx(0.05, abs=1e-9)
    assert t_test((values - values.mean() - 2 * width).tolist()) < 0.05
    assert (t_test([0.1, 0.1]), t_test([0.0, 0.0])) == (0.0, 1.0)


def rejected(p_values: list[float], level: float) -> set[int]:
    """Holm's procedure by its definition: step down until a test is not below the level over those that are left."""
    found: set[int] = set()
    for index in sorted(range(len(p_values)), key=p_values.__getitem__):
        if p_values[index] > level / (len(p_values) - len(found)):
            break
        found.add(index)
    return found


def test_holm_rejects_what_its_step_down_procedure_does() -> None:
    for p_values in itertools.product([0.004, 0.011, 0.02, 0.03, 0.4], repeat=4):
        adjusted = holm(list(p_values))
        for level in (0.0101, 0.0501, 0.0999, 0.2):
            assert {i for i, p in enumerate(adjusted) if p <= level} == rejected(list(p_values), level)
    assert holm([]) == []
