"""Decide the claims of the papers from the kept runs by one rule, and write the tables of docs/claims.md.

    python docs/experiments/claims.py --table docs/experiments

Each claim of claims.yaml is tested by differences of runs with the same seed, in each setting that has the runs. Holm's
procedure corrects over all m differences of the page: it goes through their p-values (Student's t) from the smallest,
tests the i-th at 5% / (m − i + 1), and stops at the first that it does not reject. The corrected interval of a
difference is Student's interval of the confidence 100% less the level at which Holm's procedure tests this difference;
those after the stop get the level of the stop. So it excludes 0 if and only if Holm's procedure rejects. Together, the
corrected intervals are not a region that covers all differences with 95%. `decide` holds the rule.

The intervals cover the variation over seeds, at the values that one search found. They do not cover the search itself:
another search would find other values. Where the search of a loss was repeated, all its searches must lead to the
same verdict.
"""

import argparse
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from _experiments import AGAIN, HERE, MEASURES, METRICS, NO_SHARES, SEARCHES, TRAINED_WITH_NORM, Kept, keep_table
from centres import chosen, column, read_cells

from proxemic.studies.statistics import Estimate, holm, t_interval, t_test
from proxemic.tables import MISSING, Table

HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_TESTED = "holds", "contradicted", "inconclusive", "not tested"
SETTINGS = {
    "cars-features": "photographs, heads",
    "cars-pretrained": "photographs, fine-tuned",
    "glyphs-small": "Glyphs",
    "omniglot": "Omniglot",
}
PAPER_DATA = {"cars-features": "Cars196", "cars-pretrained": "Cars196"}
"""The papers' data set that a setting shares. Gains on other data are shown, but not compared."""
CENTRES = {"cars-features": "makers", "glyphs-small": "letters"}
"""The data of classes with several centres, by the setting with the same network."""
CHARACTERS = ("glyphs-small", "omniglot")
"""Settings where every loss is searched with and without a layer norm."""
METRIC_NAMES = METRICS | MEASURES
ERROR = 0.05
"""The family-wise error rate of Holm's procedure over the whole page."""
CLAIMS: dict[str, dict[str, Any]] = {
    f"{letter}{place}": {"parts": {}, "read": "runs", "layer_norm": False} | claim
    for letter, claims in yaml.safe_load((HERE / "claims.yaml").read_text(encoding="utf-8")).items()
    for place, claim in enumerate(claims, 1)
}
"""The claims by their number."""


def read(kept: Path, setting: str, kind: str, name: str, metric: str) -> Mapping[int, float]:
    """Read the values of a loss by seed, of runs, of a reality check, or of classes with several centres.

    In the name, `@` separates the loss from the condition, the kind of embedding, or whether it has one proxy or the
    number and start of proxies that validation chose.
    """
    loss, _, condition = name.partition("@")
    if kind == "centres":
        cells = read_cells(Kept(kept / CENTRES[setting])) if setting in CENTRES else {}
        cell = (loss, 1, "drawn") if condition == "one proxy" or not cells else chosen(cells, loss)
        return column(cells.get(cell, ()), metric)
    known = Kept(kept / setting)
    return known.runs(loss, condition)[metric] if kind == "runs" else known.check(loss).get((condition, metric), {})


def decide(low: float, high: float, gain: float | None = None) -> str:
    """Give the verdict on a difference, from the ends of its corrected interval and the gain of the paper.

    >>> decide(0.1, 0.3), decide(-0.3, -0.1), decide(-0.1, 0.3), decide(-0.1, 0.3, gain=0.5)
    ('holds', 'contradicted', 'inconclusive', 'contradicted')
    """
    if low > 0:
        return HOLDS
    return CONTRADICTED if high < 0 or (gain is not None and high < gain) else INCONCLUSIVE


def combine(verdicts: Sequence[str]) -> str:
    """Combine the verdicts on the differences of a claim: all must hold, and one contradiction is enough.

    >>> combine(["holds", "inconclusive"]), combine(["holds", "contradicted"]), combine([])
    ('inconclusive', 'contradicted', 'not tested')
    """
    if not verdicts:
        return NOT_TESTED
    return next((verdict for verdict in (CONTRADICTED, INCONCLUSIVE) if verdict in verdicts), HOLDS)


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's procedure tests each p-value; after its stop, the level stays the same.

    >>> [round(level, 4) for level in holm_levels([0.04, 0.001, 0.5])]
    [0.025, 0.0167, 0.025]
    """
    levels, level, stopped = [0.0] * len(p_values), 0.0, False
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if not stopped:
            level = ERROR / (len(p_values) - place)
            stopped = p_values[index] >= level
        levels[index] = level
    return levels


@dataclass(frozen=True)
class Comparison:
    """A part of a claim in a setting: a difference of runs, or a ratio of spreads over seeds."""

    kept: Path
    number: str
    part: str
    setting: str

    @property
    def is_ratio(self) -> bool:
        """Whether the part is a ratio, whose values are logarithms."""
        return " / " in self.part

    @property
    def has_norm(self) -> bool:
        """Whether the losses of cosines, whose recipes have no layer norm, are compared with it."""
        return CLAIMS[self.number]["layer_norm"] and self.setting in CHARACTERS

    @property
    def name(self) -> str:
        """The part as shown in tables."""
        if self.is_ratio:
            over, under = (METRIC_NAMES[metric] for metric in self.part.split(" / "))
            return f"spread over seeds of {over} / of {under}"
        name = re.sub(r"@(.+?)(?= [+−] |$)", r" (\1)", self.part)
        return f"{name}, both with layer norm" if self.has_norm else name

    @property
    def gain(self) -> float | None:
        """The gain of the paper on the same data, in points."""
        return CLAIMS[self.number]["parts"][self.part].get(PAPER_DATA.get(self.setting, ""))

    @cached_property
    def values(self) -> list[float]:
        """The difference for each common seed, or the ratio for each loss, where identical runs count once."""
        return self._values("")

    @cached_property
    def searched_again(self) -> list[list[float]]:
        """The differences of repeated searches, where at least one of the losses has them."""
        if self.is_ratio or CLAIMS[self.number]["read"] != "runs":
            return []
        losses = [self._loss(name) for name in re.split(" [+−] ", self.part)]
        repeated = [suffix for suffix in AGAIN if any(self._is_repeated(loss, suffix) for loss in losses)]
        return [values for suffix in repeated if len(values := self._values(suffix)) > 1]

    def _loss(self, name: str) -> str:
        """Return the loss of a term, with the norm where it is compared with it."""
        loss = name.partition("@")[0]
        return f"{loss}-with-norm" if self.has_norm and loss not in TRAINED_WITH_NORM else loss

    def _is_repeated(self, loss: str, suffix: str) -> bool:
        return any(Kept(self.kept / self.setting).runs(loss + suffix).values())

    def _values(self, suffix: str) -> list[float]:
        """Read the runs of the searches with a suffix, or of the only search of a loss that was not searched again."""
        claim = CLAIMS[self.number]

        def runs(name: str, metric: str) -> Mapping[int, float]:
            loss, (_, at, condition) = self._loss(name), name.partition("@")
            search = loss + suffix if self._is_repeated(loss, suffix) else loss
            return read(self.kept, self.setting, claim["read"], f"{search}{at}{condition}", metric)

        if self.is_ratio:
            spreads = [[tuple(runs(loss, metric).values()) for metric in self.part.split(" / ")] for loss in SEARCHES]
            ratios = {
                over: statistics.stdev(over) / statistics.stdev(under) for over, under in spreads if len(over) > 1
            }
            return [*map(math.log, ratios.values())]
        plus, *minus = self.part.split(" − ")
        terms = [(1, runs(name, claim["metric"])) for name in plus.split(" + ")]
        terms += [(-1, runs(name, claim["metric"])) for name in minus]
        seeds = sorted(set.intersection(*({*values} for _, values in terms)))
        return [sum(sign * values[seed] for sign, values in terms) for seed in seeds]

    def verdict(self, level: float) -> str:
        """Decide by the interval at a level; if repeated searches lead to other verdicts, nothing is decided."""
        gain = None if self.gain is None else self.gain / 100  # all gains are in points
        intervals = (t_interval(values, confidence=1 - level) for values in (self.values, *self.searched_again))
        verdicts = {decide(*_ends(interval), gain) for interval in intervals}
        return verdicts.pop() if len(verdicts) == 1 else INCONCLUSIVE

    def row(self, level: float, p: float) -> list[object]:
        """Lay out the numbers: ratios, distances, or percentage points."""
        claim = CLAIMS[self.number]
        factor = 1 if claim["metric"] in NO_SHARES else 100
        place = f" ({CENTRES[self.setting]})" if claim["read"] == "centres" else ""
        intervals = (t_interval(self.values), t_interval(self.values, confidence=1 - level))
        usual, corrected = (
            "{:.2f} to {:.2f}".format(*(math.exp(end) if self.is_ratio else factor * end for end in _ends(interval)))
            for interval in intervals
        )
        mean = math.exp(intervals[0].mean) if self.is_ratio else factor * intervals[0].mean
        return [
            *(f"{self.number}: {self.name}{place}", SETTINGS[self.setting], METRIC_NAMES[claim["metric"]]),
            *(1 + len(self.searched_again), len(self.values), f"{mean:.2f}", usual, corrected),
            *(f"{100 * (1 - level):.2f}%", f"{p:.3f}"),
            *(MISSING if self.gain is None else f"{self.gain:g}", self.verdict(level)),
        ]


def tables(kept: Path) -> dict[str, Table]:
    """Make the tables of the page: counts of verdicts, verdicts by claim and setting, numbers, and undecided claims.

    Searches that share their runs have no difference to test.
    """
    parts = [(number, part) for number, claim in CLAIMS.items() for part in claim["parts"]]
    comparisons = [Comparison(kept, number, part, setting) for number, part in parts for setting in SETTINGS]
    comparisons = [comparison for comparison in comparisons if len(comparison.values) > 1 and any(comparison.values)]
    p_values = [t_test(comparison.values) for comparison in comparisons]
    levels = holm_levels(p_values)
    verdicts = {(number, setting): list[str]() for number in CLAIMS for setting in SETTINGS}
    for comparison, level in zip(comparisons, levels, strict=True):
        verdicts[comparison.number, comparison.setting].append(comparison.verdict(level))
    counts = Counter((setting, combine(found)) for (_, setting), found in verdicts.items())
    by_verdict = [
        [verdict, *(counts[setting, verdict] for setting in SETTINGS)]
        for verdict in (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_TESTED)
    ]
    decided = [
        [
            *(f"{number}: {claim['claim']}", _gains(claim["parts"].values())),
            *(combine(verdicts[number, setting]) for setting in SETTINGS),
        ]
        for number, claim in CLAIMS.items()
        if claim["parts"]
    ]
    numbers = [
        comparison.row(level, p) for comparison, level, p in zip(comparisons, levels, holm(p_values), strict=True)
    ]
    columns = [
        *("claim: difference", "setting", "metric", "searches", "n", "mean", "95% interval", "corrected interval"),
        *("confidence", "p by Holm", "paper's gain, same data", "verdict"),
    ]
    undecided = [[f"{number}: {claim['claim']}", claim["why"]] for number, claim in CLAIMS.items() if "why" in claim]
    return {
        "claims-counts.csv": Table(
            ["verdict", *SETTINGS.values(), "all"], [[*row, sum(map(int, row[1:]))] for row in by_verdict]
        ),
        "claims.csv": Table(["claim", "gain in the paper", *SETTINGS.values()], decided),
        "claims-numbers.csv": Table(columns, numbers),
        "claims-undecided.csv": Table(["claim", "why no kept run decides it"], undecided),
    }


def _gains(parts: Iterable[Mapping[str, float]]) -> str:
    """List the smallest gain of the parts for each data set of the paper."""
    smallest: dict[str, float] = {}
    for name, gain in (item for gains in parts for item in gains.items()):
        smallest[name] = min(gain, smallest.get(name, gain))
    return ", ".join(f"{gain:g} ({name})" for name, gain in smallest.items()) or MISSING


def _ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.half_width is not None
    return estimate.mean - estimate.half_width, estimate.mean + estimate.half_width


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished runs are kept")
    parser.add_argument("--table", type=Path, required=True, metavar="DIR", help="write the tables to this folder")
    arguments = parser.parse_args()
    for name, table in tables(arguments.kept).items():
        keep_table(table, arguments.table / name, "claims.py --table docs/experiments")


if __name__ == "__main__":
    main()
