"""The values that one hyper-parameter may take in a search."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from proxemic.errors import UserError


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``.

    Args:
        low: The smallest.
        high: The largest.
        log: Sample the logarithm; needs ``low`` above 0.
        step: Distance between values, from ``low`` on.
        integer: Sample whole numbers only.
        points: How many values a grid search takes, evenly spaced (their logarithms for ``log``), at least 1.
        grid: The values that a grid search takes, in place of ``points``.

    Raises:
        ValueError: If the bounds or the combination are not allowed.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    integer: bool = False
    points: int = 3
    grid: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("low", "high", *(["step"] if self.step is not None else [])):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}, but must be a number.")
        if not self.low <= self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}: swap them.")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(f"low is {self.low} and step {self.step}: log needs a low above 0 and no step.")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step is {self.step}, but must be above 0.")
        if self.integer and any(value % 1 for value in (self.low, self.high, self.step or 1)):
            raise ValueError(f"int is true, but low, high or step ({self.low}, {self.high}, {self.step}) is not whole.")
        if isinstance(self.points, bool) or not isinstance(self.points, int) or self.points < 1:
            raise ValueError(f"points is {self.points!r}, but must be a whole number of at least 1.")
        for value in self.grid:
            if value not in self:
                raise ValueError(f"grid holds {value!r}, which does not lie between {self.low} and {self.high}.")

    def __contains__(self, value: object) -> bool:
        """Whether a value can be sampled, the step aside."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self.integer and value % 1)

    def nearest(self, value: object) -> float | None:
        """Return the value of the range that is nearest to a number, the step aside; None for anything else.

        >>> Range(1, 4, integer=True).nearest(9.5), Range(0.1, 1).nearest(0.2), Range(0.1, 1).nearest(None)
        (4, 0.2, None)
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.integer else inside

    def values(self) -> tuple[float, ...]:
        """Return the values that a grid search takes.

        >>> Range(1, 100, log=True).values(), Range(1, 4, integer=True, points=9).values()
        ((1.0, 10.0, 100.0), (1, 2, 3, 4))
        """
        if self.grid:
            return self.grid
        spaced = (np.geomspace if self.log else np.linspace)(self.low, self.high, self.points)
        step = self.step or (1 if self.integer else None)
        if step is not None:
            spaced = np.minimum(self.low + step * np.round((spaced - self.low) / step), self.high)
        # Rounding may lead out of the range.
        values = dict.fromkeys(min(max(float(value), self.low), self.high) for value in spaced)
        return (
            tuple(int(value) for value in values) if self.integer else tuple(float(f"{value:.6g}") for value in values)
        )


@dataclass(frozen=True)
class Factor:
    """Numbers around the recipe's own value, so that one space fits small networks and large ones.

    Args:
        low: The smallest, as a multiple of the recipe's value, above 0.
        high: The largest, as a multiple of the recipe's value.
        log: As in `Range`.
        points: As in `Range`.

    Raises:
        ValueError: If the factors are not allowed.
    """

    low: float
    high: float
    log: bool = False
    points: int = 3

    def __post_init__(self) -> None:
        Range(self.low, self.high, log=True, points=self.points)

    def around(self, name: str, value: Any) -> Range:
        """Return the range around the recipe's value of the key ``name``; `UserError` unless that is above 0."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(
                f"The search space varies {name} by a factor of the recipe's own value, but that is {value!r}: set it "
                "in the recipe, or give low and high in the space."
            )
        return Range(float(f"{self.low * value:.6g}"), float(f"{self.high * value:.6g}"), self.log, points=self.points)


@dataclass(frozen=True)
class Choices:
    """One of several values; a list or a mapping is given as its JSON text, as a flag takes it.

    Raises:
        ValueError: If there are none.
    """

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("choices is empty, but needs at least one value.")

    def __contains__(self, value: object) -> bool:
        return value in self.choices

    def nearest(self, value: object) -> Any:
        """Return the value if it is one of the choices, and otherwise None."""
        return value if value in self.choices else None

    def values(self) -> tuple[Any, ...]:
        """Return the values that a grid search takes."""
        return self.choices


Dimension = Range | Factor | Choices


def read_dimension(content: Any, where: str) -> Dimension:
    """Read what a space says about one hyper-parameter.

    Raises:
        UserError: For an unknown key, or a value that is not allowed.

    >>> read_dimension({"factor": 10, "log": True}, "optim.lr")
    Factor(low=0.1, high=10.0, log=True, points=3)
    >>> read_dimension({"choices": [1, [0.45, 0.8]]}, "loss.margin_range")
    Choices(choices=(1, '[0.45, 0.8]'))
    """
    kinds = {"choices": (), "factor": ("log", "points"), "low": ("high", "log", "step", "int", "points", "grid")}
    given: dict[str, Any] = dict(content) if isinstance(content, Mapping) else {}
    kind = next((name for name in kinds if name in given), None)
    if kind is None:
        raise UserError(f"{where} is {content!r}, but must give low and high, or factor, or choices.")
    for key in given:
        if key not in (kind, *kinds[kind]):
            raise UserError(f"{where}: there is no key {key} beside {kind}; allowed are {', '.join(kinds[kind])}.")
    try:
        if kind == "choices":
            return Choices(tuple(json.dumps(each) if isinstance(each, list | dict) else each for each in given[kind]))
        if kind == "factor":
            factor = given.pop("factor")
            low, high = factor if isinstance(factor, list) else (1 / factor, factor)
            return Factor(float(low), float(high), **given)
        grid = tuple(given.pop("grid", ()))
        return Range(integer=given.pop("int", False), grid=grid, **given)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{where}: {error}") from error


def grid_points(dimensions: Mapping[str, Range | Choices]) -> list[dict[str, Any]]:
    """All combinations of the values that a grid search takes.

    >>> grid_points({"a": Choices((1, 2)), "b": Range(0, 1, points=2)})
    [{'a': 1, 'b': 0.0}, {'a': 1, 'b': 1.0}, {'a': 2, 'b': 0.0}, {'a': 2, 'b': 1.0}]
    """
    return [
        dict(zip(dimensions, point, strict=True)) for point in product(*(each.values() for each in dimensions.values()))
    ]
