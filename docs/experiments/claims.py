"""Decide the claims of the papers by one rule from the kept runs, and write the tables of docs/claims.md.

    python docs/experiments/claims.py --table docs/experiments

Each claim is tested by differences of runs with the same seed, in each setting that has the runs. Holm's procedure
corrects over all m differences of the page: it goes through their p-values (Student's t) from the smallest, tests the
i-th at 5% / (m − i + 1), and stops at the first that it does not reject. The corrected interval of a difference is
Student's interval of the confidence 100% less the level at which Holm's procedure tests this difference; those after
the stop get the level of the stop. So it excludes 0 if and only if Holm's procedure rejects. Together, the corrected
intervals are not a region that covers all differences with 95%. `decide` holds the rule.

All intervals cover the chance of the seeds, at the values that one search found. They do not cover the search: another
search would find other values.
"""

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _claims import CENTRES, CLAIMS, METRIC_NAMES, Claim, Difference, SpreadRatio, read_centres
from _searches import HERE, keep_table, run_script

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
"""The data set of the papers that a setting shares. Gains on other data are shown, but not compared."""
ERROR = 0.05
"""The chance of a false rejection that Holm's procedure keeps over the whole page."""
COMMAND = "python docs/experiments/claims.py --table docs/experiments"


def main() -> None:
    """Parse the flags and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished runs are kept")
    parser.add_argument("--table", type=Path, required=True, metavar="DIR", help="write the tables to this folder")
    arguments = parser.parse_args()
    for name, table in tables(arguments.kept).items():
        keep_table(table, arguments.table / name, COMMAND)


def decide(low: float, high: float, gain: float | None = None) -> str:
    """Give the verdict on a difference, from the ends of its corrected interval and the gain of the paper.

    >>> decide(0.1, 0.3), decide(-0.3, -0.1), decide(-0.1, 0.3), decide(-0.1, 0.3, gain=0.5)
    ('holds', 'contradicted', 'inconclusive', 'contradicted')
    """
    if low > 0:
        return HOLDS
    if high < 0 or (gain is not None and high < gain):
        return CONTRADICTED
    return INCONCLUSIVE


def combine(verdicts: Sequence[str]) -> str:
    """Combine the verdicts on the differences of a claim: all must hold, and one contradiction is enough.

    >>> combine(["holds", "inconclusive"]), combine(["holds", "contradicted"]), combine([])
    ('inconclusive', 'contradicted', 'not tested')
    """
    if not verdicts:
        return NOT_TESTED
    if CONTRADICTED in verdicts:
        return CONTRADICTED
    return HOLDS if {*verdicts} == {HOLDS} else INCONCLUSIVE


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's procedure tests each p-value; those after its stop get the level of the stop.

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
    """A difference of a claim in a setting, with the value of each seed."""

    number: str
    part: Difference | SpreadRatio
    setting: str
    values: Sequence[float]

    @property
    def gain(self) -> float | None:
        """The gain of the paper on the same data, in points."""
        return self.part.gains.get(PAPER_DATA.get(self.setting, ""))

    def verdict(self, level: float) -> str:
        """Decide by the interval of a level."""
        low, high = _ends(t_interval(self.values, confidence=1 - level))
        return decide(low, high, None if self.gain is None else self.gain / 100)

    def row(self, level: float, p: float) -> list[object]:
        """Lay out the numbers: ratios, or percentage points."""
        claim = CLAIMS[self.number]
        place = f" ({CENTRES[self.setting]})" if claim.read is read_centres else ""
        intervals = (t_interval(self.values), t_interval(self.values, confidence=1 - level))
        usual, corrected = (
            "{:.2f} to {:.2f}".format(*(math.exp(end) if self.part.ratio else 100 * end for end in _ends(interval)))
            for interval in intervals
        )
        mean = math.exp(intervals[0].mean) if self.part.ratio else 100 * intervals[0].mean
        return [
            *(f"{self.number}: {self.part.name}{place}", SETTINGS[self.setting], METRIC_NAMES[claim.metric]),
            *(len(self.values), f"{mean:.2f}", usual, corrected, f"{100 * (1 - level):.2f}%", f"{p:.3f}"),
            *(MISSING if self.gain is None else f"{self.gain:g}", self.verdict(level)),
        ]


def compare(kept: Path) -> list[Comparison]:
    """Compare all runs that are kept; runs that two searches share differ by nothing, and so test nothing."""
    comparisons = [
        Comparison(number, part, setting, part.values(kept, setting, claim.metric, claim.read))
        for number, claim in CLAIMS.items()
        for part in claim.parts
        for setting in SETTINGS
    ]
    return [each for each in comparisons if len(each.values) > 1 and any(each.values)]


def tables(kept: Path) -> dict[str, Table]:
    """Make the tables of the page: the counts of verdicts, claim by setting, the numbers, and what no run decides."""
    comparisons = compare(kept)
    p_values = [t_test(each.values) for each in comparisons]
    levels = holm_levels(p_values)
    verdicts = {
        (number, setting): combine(
            [
                each.verdict(level)
                for each, level in zip(comparisons, levels, strict=True)
                if (each.number, each.setting) == (number, setting)
            ]
        )
        for number in CLAIMS
        for setting in SETTINGS
    }
    decidable = {number: claim for number, claim in CLAIMS.items() if claim.parts}
    return {
        "claims-counts.csv": _count(verdicts),
        "claims.csv": Table(
            ["claim", "gain in the paper", *SETTINGS.values()],
            [
                [f"{number}: {claim.statement}", _gains(claim), *(verdicts[number, setting] for setting in SETTINGS)]
                for number, claim in decidable.items()
            ],
        ),
        "claims-numbers.csv": Table(
            [
                *("claim: difference", "setting", "metric", "n", "mean", "95% interval", "corrected interval"),
                *("confidence", "p by Holm", "paper's gain, same data", "verdict"),
            ],
            [each.row(level, p) for each, level, p in zip(comparisons, levels, holm(p_values), strict=True)],
        ),
        "claims-undecided.csv": Table(
            ["claim", "why no kept run decides it"],
            [[f"{number}: {claim.statement}", claim.why] for number, claim in CLAIMS.items() if not claim.parts],
        ),
    }


def _count(verdicts: Mapping[tuple[str, str], str]) -> Table:
    counts = Counter((setting, verdict) for (_, setting), verdict in verdicts.items())
    rows: list[list[object]] = []
    for verdict in (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_TESTED):
        by_setting = [counts[setting, verdict] for setting in SETTINGS]
        rows.append([verdict, *by_setting, sum(by_setting)])
    return Table(["verdict", *SETTINGS.values(), "all"], rows)


def _gains(claim: Claim) -> str:
    """List the gain in each data set of the paper, the smallest of the parts."""
    datasets = dict.fromkeys(dataset for part in claim.parts for dataset in part.gains)
    smallest = {name: min(part.gains[name] for part in claim.parts if name in part.gains) for name in datasets}
    return ", ".join(f"{gain:g} ({name})" for name, gain in smallest.items()) or MISSING


def _ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.half_width is not None
    return estimate.mean - estimate.half_width, estimate.mean + estimate.half_width


if __name__ == "__main__":
    run_script(main)
