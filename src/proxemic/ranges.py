"""Check that settings lie in intervals, which are written as in mathematics: ``[0, 1)``."""

import math
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

SEEDS = f"[0, {2**63})"
"""The interval of seeds that all random generators accept."""


def check_range(name: str, value: float | None, interval: str) -> None:
    """Raise `ValueError` unless a number lies in an interval; None is always allowed.

    >>> check_range("fraction", 1.0, "[0, 1)")
    Traceback (most recent call last):
    ValueError: fraction is 1.0, but must be at least 0 and below 1.
    """
    low, high = interval[1:-1].split(", ")
    if value is None:
        return
    above = float(low) < value if interval[0] == "(" else float(low) <= value
    below = value < float(high) if interval[-1] == ")" else value <= float(high)
    if not (above and below):
        bounds = [f"{'above' if interval[0] == '(' else 'at least'} {low}"]
        bounds += [f"{'below' if interval[-1] == ')' else 'at most'} {high}"] if high != "inf" else []
        rule = f"from {low} to {high}" if interval[0] + interval[-1] == "[]" else " and ".join(bounds)
        raise ValueError(f"{name} is {value}, but must be {'' if math.isfinite(value) else 'finite and '}{rule}.")


def check_fields(section: Any, name: str = "", /, **intervals: str) -> None:
    """Raise `ValueError` unless the named fields lie in their intervals, and `Literal` fields have an allowed value.

    Messages begin with ``name``, the key of the section in a recipe.
    """
    prefix = f"{name}." if name else ""
    for field in fields(section):
        value = getattr(section, field.name)
        if get_origin(field.type) is Literal and value not in get_args(field.type):
            allowed = ", ".join(map(str, get_args(field.type)))
            raise ValueError(f"{prefix}{field.name} is {value!r}, but must be one of {allowed}.")
        if field.name in intervals:
            check_range(f"{prefix}{field.name}", value, intervals[field.name])
