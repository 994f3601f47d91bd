"""Settings within their intervals pass; others are refused in one sentence."""

import math

import pytest

from proxemic.ranges import check_range


@pytest.mark.parametrize(("value", "interval"), [(0, "[0, 1)"), (1, "(0, 1]"), (2.5, "(0, inf)"), (None, "[1, inf)")])
def test_within(value: float | None, interval: str) -> None:
    check_range("x", value, interval)


@pytest.mark.parametrize(
    ("value", "interval", "rule"),
    [
        (1, "[0, 1)", "at least 0 and below 1"),
        (0, "(0, 1]", "above 0 and at most 1"),
        (-1, "[0, 1]", "from 0 to 1"),
        (0, "[1, inf)", "at least 1"),
        (math.inf, "(0, inf)", "finite and above 0"),
        (math.nan, "[0, 1]", "finite and from 0 to 1"),
    ],
)
def test_outside(value: float, interval: str, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^x is {value}, but must be {rule}.$"):
        check_range("x", value, interval)
