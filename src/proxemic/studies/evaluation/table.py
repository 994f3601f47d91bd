"""Metrics of one model with intervals, or of two with their differences, as rows for programs and cells for people."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxemic.metrics import Interval, PairedDifference
from proxemic.tables import MISSING, percent

_NO_INTERVAL = Interval(math.nan, math.nan, math.nan)
_NO_DIFFERENCE = PairedDifference(math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class MetricTable:
    """The metrics of one model, or of two on the same queries.

    Args:
        values: The metrics of each model, by name.
        split: What they were measured on.
        level: Confidence level of the intervals.
        intervals: The interval of each metric of a single model, as far as there are any.
        differences: By how much the first of two models exceeds the second, as far as that is known.
        chance: What a random order gives; None shows no such column to people.
    """

    values: Sequence[Mapping[str, float]]
    split: str
    level: float
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    differences: Mapping[str, PairedDifference] = field(default_factory=dict)
    chance: Mapping[str, float] | None = None

    @property
    def has_bounds(self) -> bool:
        """Whether there are intervals, or differences."""
        return bool(self.intervals or self.differences)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per metric; missing values are NaN.

        The columns are metric, split, value, chance, low and high; for two models metric, split, first, second,
        difference, low, high and p_value.
        """
        rows: list[dict[str, Any]] = []
        for name, value in self.values[0].items():
            if len(self.values) == 1:
                interval = self.intervals.get(name, _NO_INTERVAL)
                known = {"value": value, "chance": (self.chance or {}).get(name, math.nan)}
                known |= {"low": interval.low, "high": interval.high}
            else:
                second = self.values[1][name]
                known = {"first": value, "second": second} | vars(self.differences.get(name, _NO_DIFFERENCE))
                known |= {"difference": value - second}
            rows.append({"metric": name, "split": self.split} | known)
        return rows

    def cells(self, bounds: bool) -> tuple[list[str], list[list[str]]]:
        """Return header and rows as papers print them: in percent, thresholds as they are; with bounds if asked for."""
        one = len(self.values) == 1
        header = ["metric", *([self.split] if one else ["A", "B"]), *(["chance"] if self.chance is not None else [])]
        header += [] if one else ["A - B"]
        header += [f"{100 * self.level:g}% interval"] * bounds + ["p"] * (bounds and not one)
        rows = []
        for row in self.rows():
            name, is_threshold = row["metric"], row["metric"].startswith("threshold")
            show = _as_it_is if is_threshold else percent
            cells = [name, *(show(row[key]) for key in (["value"] if one else ["first", "second"]))]
            cells += [percent(self.chance.get(name))] if self.chance is not None else []
            if not one:
                cells.append(show(row["difference"]) if is_threshold else f"{100 * row['difference']:+.2f}")
            if bounds:
                cells.append(MISSING if math.isnan(row["low"]) else f"{show(row['low'])} … {show(row['high'])}")
            if bounds and not one:
                cells.append(_as_it_is(row["p_value"]))
            rows.append(cells)
        return header, rows

    def bounds(self) -> dict[str, Any]:
        """Return intervals and differences for JSON, as far as there are any."""
        intervals = {name: [each.low, each.high] for name, each in self.intervals.items()}
        named = {"intervals": intervals, "differences": {name: vars(each) for name, each in self.differences.items()}}
        return {name: values for name, values in named.items() if values}


def _as_it_is(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.4f}"
