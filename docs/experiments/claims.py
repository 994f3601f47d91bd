"""Decide the claims of the papers from the kept runs by the rule of rule.md, and write the tables of docs/claims.md.

    python docs/experiments/claims.py

Each claim of claims.yaml is tested by differences of runs, in each setting that has the runs. There are three kinds:

* A component: the differences of paired configurations, which differ in it alone (`paired.py`).
* The same loss in two ways: the differences by seed.
* Two losses, tuned separately: their differences by seed, with the variation from one search to another.

`decide` holds the rule for one difference, `false_discoveries` the correction for many.
"""

import argparse
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import _kept
import numpy as np
import paired
import yaml
from _evidence import Evidence
from _experiments import (
    AGAIN,
    HEADLINES,
    HERE,
    MEASURES,
    METRICS,
    NO_SHARES,
    SEARCHES,
    TRAINED_WITH_NORM,
    Kept,
    add_kept,
    write_table,
)
from centres import chosen, column, read_cells
from scipy.optimize import brentq
from scipy.stats import chi2, norm, t

from proxemic.tables import MISSING, Table

HOLDS, CONTRADICTED, INCONCLUSIVE = "holds", "contradicted", "inconclusive"
TOO_FEW, NOT_TESTED = "too few runs", "not tested"
VERDICTS = (HOLDS, CONTRADICTED, INCONCLUSIVE, TOO_FEW, NOT_TESTED)
SETTINGS = {
    "cars-features": "photographs, heads",
    "cars-pretrained": "photographs, fine-tuned",
    "glyphs-small": "Glyphs",
    "omniglot": "Omniglot",
}
NEAREST = {"cars-pretrained": "cars-features", "omniglot": "glyphs-small"}
"""The setting whose repeated searches stand for those of a setting that has none."""
PAPER_DATA = {"cars-features": "Cars196", "cars-pretrained": "Cars196"}
"""The papers' data set that a setting shares. Gains on other data are shown, but not compared."""
CENTRES = {"cars-features": "makers", "glyphs-small": "letters"}
"""The data of classes with several centres, by the setting with the same network."""
CHARACTERS = ("glyphs-small", "omniglot")
"""Settings whose networks have no layer norm in the recipes of losses of cosines."""
WARP = dict.fromkeys(SETTINGS, "warp") | {"cars-pretrained": "warp-off-first"}
"""The form of the warp that a setting has: the paper's, or one without the warp in the first phase."""
METRIC_NAMES = METRICS | MEASURES | {"recall@8": "Recall@8"}
ERROR, POWER = 0.05, 0.8
"""The false discovery rate, and the power at which an effect counts as one that the runs would have found."""
EFFECT = 0.7
"""The effect in points that a claim asks for if its paper states no gain."""
CLOSE = 0.1
"""The largest difference between AvgDTP and α, as a fraction of α, that still counts as equal."""
CLAIMS: dict[str, dict[str, Any]] = {
    number: {"parts": {}, "read": "runs", "layer_norm": False} | claim
    for number, claim in yaml.safe_load((HERE / "claims.yaml").read_text(encoding="utf-8")).items()
}
"""The claims by their id."""


class Sample(NamedTuple):
    """An estimated difference: its mean, the standard error of the mean, degrees of freedom, and numbers of runs."""

    mean: float
    error: float
    freedom: float
    n: int
    searches: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> "Sample":
        """Return Student's estimate from independent values."""
        return cls(
            statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5, len(values) - 1, len(values)
        )

    @property
    def p(self) -> float:
        """The two-sided p-value that the mean is 0."""
        return 2 * float(t.sf(abs(self.mean) / self.error, self.freedom))

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the ends of the interval of the mean."""
        half = float(t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.mean - half, self.mean + half

    def detectable(self, level: float) -> float:
        """Return the smallest effect that a two-sided test at a level finds with 80% power.

        >>> round(Sample(0.0, 2 / 66**0.5, 65, 66).detectable(0.05), 2)
        0.7
        """
        # The power is a mean over the estimated standard errors; scipy's noncentral t fails at large effects.
        quantiles = (np.arange(4000) + 0.5) / 4000
        bounds = t.ppf(1 - level / 2, self.freedom) * np.sqrt(chi2.ppf(quantiles, self.freedom) / self.freedom)
        lack = lambda shift: np.mean(norm.sf(bounds - shift) + norm.cdf(-bounds - shift)) - POWER  # noqa: E731
        shift: Any = brentq(lack, 0, bounds[-1] + 10)
        return self.error * float(shift)


def decide(mean: float, interval: tuple[float, float], *, rejected: bool, gain: float | None = None) -> str | None:
    """Give the verdict on a difference, or None: nothing is decided.

    >>> decide(0.2, (0.1, 0.3), rejected=True), decide(0.1, (-0.1, 0.3), rejected=False, gain=0.5)
    ('holds', 'contradicted')
    >>> decide(0.1, (-0.1, 0.3), rejected=False, gain=0.2) is None
    True
    """
    low, high = interval
    if rejected:
        return HOLDS if mean > 0 else CONTRADICTED
    return CONTRADICTED if gain is not None and low <= 0 and high < gain else None


def combine(verdicts: Sequence[str]) -> str:
    """Combine the verdicts on the differences of a claim: all must hold, and one contradiction is enough.

    >>> combine(["holds", "inconclusive"]), combine(["holds", "contradicted"]), combine([])
    ('inconclusive', 'contradicted', 'not tested')
    """
    if not verdicts:
        return NOT_TESTED
    return next((verdict for verdict in (CONTRADICTED, TOO_FEW, INCONCLUSIVE) if verdict in verdicts), HOLDS)


def false_discoveries(p_values: Sequence[float]) -> int:
    """Return how many of the smallest p-values Benjamini and Hochberg's procedure rejects.

    >>> false_discoveries([0.04, 0.001, 0.02, 0.5])
    2
    """
    ordered = sorted(p_values)
    return max((rank for rank, p in enumerate(ordered, 1) if p <= ERROR * rank / len(ordered)), default=0)


def read(kept: Path, setting: str, kind: str, name: str, metric: str) -> Mapping[int, float]:
    """Read the values of a loss by seed, of runs, of a reality check, or of classes with several centres.

    In the name, `@` separates the loss from the condition, the kind of embedding, or whether it has one proxy or the
    number and start of proxies that validation chose. Runs of rule.md join older ones, unless the first seed that both
    have differs: then they replace them.
    """
    loss, _, condition = name.partition("@")
    if kind == "centres":
        cells = read_cells(Kept(kept, CENTRES[setting])) if setting in CENTRES else {}
        cell = (loss, 1, "drawn") if condition == "one proxy" or not cells else chosen(cells, loss)
        return column(cells.get(cell, ()), metric)
    if kind == "reality check":
        return Kept(kept, setting).check(loss).get((condition, metric), {})
    old, new = (Kept(kept, setting, table).runs(loss, condition) for table in ("runs", "evidence"))
    if kind == "epochs":
        loss_and_weight, _, epoch = condition.rpartition(" epoch ")
        return {
            row["seed"]: row[metric]
            for row in _kept.read(kept, "epochs", setting, loss)
            if (row["condition"], str(row["epoch"])) == (loss_and_weight, epoch)
        }
    both = sorted(old["recall@1"].keys() & new["recall@1"].keys())[:1]
    equal = all(old[key].get(seed) in (None, new[key].get(seed)) for seed in both for key in METRICS)
    return old[metric] | new[metric] if equal else new[metric]


@dataclass(frozen=True, eq=False)
class Difference:
    """A part of a claim in a setting, with the gains of the paper in points."""

    kept: Path
    number: str
    part: str
    setting: str
    gains: Mapping[str, float]

    @classmethod
    def of_claim(cls, kept: Path, number: str, setting: str) -> list["Difference"]:
        """Return the parts of a claim in a setting; those by epoch are one for each of three epochs."""
        claim = CLAIMS[number]
        parts = [(part.format(warp=WARP[setting]), gains) for part, gains in claim["parts"].items()]
        if "pairs" in claim and setting in paired.MOST:
            parts = parts[:1]
        if claim["read"] == "epochs":
            last = _epochs(kept, setting, parts[0][0].partition("@")[0])
            parts = [
                (" − ".join(f"{name} epoch {epoch}" for name in part.split(" − ")), gains)
                for part, gains in parts
                for epoch in sorted({math.ceil(last * share) for share in (0.5, 0.75, 1)} if last else ())
            ]
        return [cls(kept, number, part, setting, gains) for part, gains in parts]

    @property
    def claim(self) -> Mapping[str, Any]:
        """The claim."""
        return CLAIMS[self.number]

    @property
    def read(self) -> str:
        """What the claim reads in the setting."""
        return "pairs" if self.component else self.claim["read"]

    @property
    def component(self) -> str | None:
        """The component whose paired configurations decide the claim in the setting."""
        return self.claim.get("pairs") if self.setting in paired.MOST else None

    @property
    def is_ratio(self) -> bool:
        """Whether the part is a ratio of spreads, whose values are logarithms."""
        return " / " in self.part

    @property
    def has_norm(self) -> bool | None:
        """Whether the networks have a layer norm before the last layer; None if losses have what suits them."""
        if self.setting not in CHARACTERS or self.read not in ("runs", "pairs", "epochs", "alpha"):
            return None
        if self.component == "warp" or self.read == "alpha":
            return True
        return self.claim["layer_norm"] and not self.component

    @property
    def name(self) -> str:
        """The part as tables show it."""
        if self.is_ratio:
            over, under = (METRIC_NAMES[metric] for metric in self.part.split(" / "))
            return f"spread over repetitions of {over} / of {under}"
        if self.component:
            component = paired.COMPONENTS[self.component]
            return f"{component.loss}: {component.with_it} − {component.without}"
        return " ".join(_readable(word) for word in _terms(self.part))

    @property
    def gain(self) -> float | None:
        """The gain of the paper on the same data, in the units of the values."""
        gain = self.gains.get(PAPER_DATA.get(self.setting, ""))
        return None if gain is None else gain / 100  # all gains are in points

    @property
    def asked(self) -> float | None:
        """The smallest effect that the runs are to find; None for what is not a share."""
        if self.is_ratio or self.claim["metric"] in NO_SHARES:
            return None
        return min(self.gains.values(), default=EFFECT) / 100

    @cached_property
    def terms(self) -> list[tuple[int, str]]:
        """The sign and the name of each run of the difference, as they are kept."""
        words = _terms(self.part)
        return [
            (-1 if place and words[place - 1] == "−" else 1, self._kept_name(word))
            for place, word in enumerate(words)
            if word not in "+−"
        ]

    @cached_property
    def losses(self) -> Counter[str]:
        """How often each loss is added less how often it is subtracted, without those that cancel."""
        counts = Counter[str]()
        for sign, name in self.terms:
            counts[name.partition("@")[0]] += sign
        return Counter({loss: count for loss, count in counts.items() if count})

    @property
    def is_of_losses(self) -> bool:
        """Whether losses are compared that were tuned separately, instead of one loss in two ways."""
        return not self.component and not self.is_ratio and len(self.terms) > 1 and bool(self.losses)

    @cached_property
    def searches(self) -> dict[str, int]:
        """The number of searches whose runs are kept for each loss that is compared."""
        found = Counter(self.losses.keys())
        if self.read == "runs":
            found.update(loss for loss in self.losses for suffix in AGAIN if self._runs(loss + suffix))
        return dict(found)

    @cached_property
    def values(self) -> list[list[float]]:
        """The difference for each common seed, for each search where a loss has several."""
        kind, metric = self.read, self.claim["metric"]
        if self.component:
            pairs = paired.differences(Evidence(self.kept), self.setting, self.component, metric)
            return [[value / 100 for value in pairs.values()]]
        if self.is_ratio:
            return [self._ratios()]
        if kind == "alpha":
            return [self._closeness()]
        suffixes = ["", *(suffix for suffix in AGAIN if any(self._runs(loss + suffix) for loss in self.losses))]
        found = []
        for suffix in suffixes if kind == "runs" else [""]:
            columns = [
                (sign, read(self.kept, self.setting, kind, self._of_search(name, suffix), metric))
                for sign, name in self.terms
            ]
            seeds = sorted(set.intersection(*({*column} for _, column in columns)))
            if len(seeds) > 1:
                found.append([sum(sign * column[seed] for sign, column in columns) for seed in seeds])
        return found

    def _kept_name(self, name: str) -> str:
        loss, at, condition = name.partition("@")
        normed = self.has_norm and loss not in TRAINED_WITH_NORM
        return f"{loss}{'-with-norm' if normed else ''}{at}{condition}"

    def _runs(self, loss: str) -> Mapping[int, float]:
        return Kept(self.kept, self.setting).runs(loss)["recall@1"]

    def _of_search(self, name: str, suffix: str) -> str:
        """Return the runs of a repeated search, or of the only search of a loss that was not searched again."""
        loss, at, condition = name.partition("@")
        return f"{loss}{suffix if suffix and self._runs(loss + suffix) else ''}{at}{condition}"

    def _ratios(self) -> list[float]:
        """Return the logarithm of the ratio of spreads of each loss; identical runs count once."""
        spreads = [
            [
                tuple(read(self.kept, self.setting, "reality check", f"{loss}@complete", metric).values())
                for metric in self.part.split(" / ")
            ]
            for loss in SEARCHES
        ]
        ratios = {over: statistics.stdev(over) / statistics.stdev(under) for over, under in spreads if len(over) > 1}
        return [*map(math.log, ratios.values())]

    def _closeness(self) -> list[float]:
        """Return by how much AvgDTP is nearer to α than `CLOSE`, as a fraction of α, for each seed."""
        loss, _, function = self.part.partition("@")
        rows = _kept.read(self.kept, "evidence", self.setting, loss)
        drawn = {row["condition"]: json.loads(row["values"]) for row in rows}
        alpha = float(
            drawn[function]["loss"]["init_args"]["alpha"]
            if "loss" in drawn.get(function, {})
            else function.rpartition("-")[2]
        )
        return [
            CLOSE - abs(value / alpha - 1)
            for value in read(self.kept, self.setting, "runs", self.part, "avg_dtp").values()
        ]


def _epochs(kept: Path, setting: str, loss: str) -> int:
    return max((row["epoch"] for row in _kept.read(kept, "epochs", setting, loss)), default=0)


def _terms(part: str) -> list[str]:
    """Split a part into the names of its runs and the signs between them."""
    return part.replace(" − ", "\n−\n").replace(" + ", "\n+\n").split("\n")


def _readable(name: str) -> str:
    loss, at, condition = name.partition("@")
    return f"{loss} ({condition})" if at else loss


class Page:
    """All differences of the page, with the variation that they share."""

    def __init__(self, kept: Path) -> None:
        every = (
            item
            for number, claim in CLAIMS.items()
            if claim["parts"]
            for setting in SETTINGS
            for item in Difference.of_claim(kept, number, setting)
        )
        # Searches that share their runs have no difference to test.
        self.differences = [item for item in every if any(len(values) > 1 and any(values) for values in item.values)]
        self.kept = kept

    @cached_property
    def spreads(self) -> dict[tuple[object, ...], tuple[float, int]]:
        """The pooled variance over seeds of the differences of losses, and its degrees of freedom."""
        pools = defaultdict[tuple[object, ...], list[list[float]]](list)
        for item in self.differences:
            if item.is_of_losses:
                pools[_pool(item)] += item.values
        return {key: _pooled(samples) for key, samples in pools.items()}

    def between_searches(self, setting: str, metric: str) -> tuple[float, int]:
        """Return the variance of a loss from search to search, and its degrees of freedom.

        Measures that no repeated search has take the variance of Recall@1.
        """
        metric, setting = metric if metric in METRICS else "recall@1", NEAREST.get(setting, setting)
        known, samples, noise = Kept(self.kept, setting), [], []
        for one, other in HEADLINES:
            means = []
            for suffix in ("", *AGAIN):
                first, second = (known.runs(loss + suffix)[metric] for loss in (one, other))
                if len(seeds := sorted(first.keys() & second.keys())) > 1:
                    values = [first[seed] - second[seed] for seed in seeds]
                    means.append(statistics.fmean(values))
                    noise.append(statistics.variance(values) / len(values))
            if len(means) > 1:
                samples.append(means)
        if not samples:
            return 0.0, 0
        variance, freedom = _pooled(samples)
        return max(variance - statistics.fmean(noise), 0) / 2, freedom  # half: each of the two losses has its share

    def sample(self, item: Difference) -> Sample:
        """Estimate a difference by the rule."""
        if not item.is_of_losses:
            return Sample.of(item.values[0])
        seeds, freedom = self.spreads[_pool(item)]
        n = len(item.values[0])
        of_seeds = (
            seeds / n * statistics.fmean(1 / item.searches.get(name.partition("@")[0], 1) for _, name in item.terms)
        )
        search, search_freedom = self.between_searches(item.setting, item.claim["metric"])
        of_searches = search * sum(count**2 / item.searches[loss] for loss, count in item.losses.items())
        total = of_seeds + of_searches
        combined = of_seeds**2 / freedom + (of_searches**2 / search_freedom if search_freedom else 0)
        mean = statistics.fmean(statistics.fmean(values) for values in item.values)
        return Sample(mean, total**0.5, total**2 / combined, n, max(item.searches.values()))

    def tables(self) -> dict[str, Table]:
        """Make the tables: counts of verdicts, verdicts by claim and setting, numbers, and undecided claims."""
        verdicts, numbers = defaultdict[tuple[str, str], list[str]](list), dict[Difference, list[object]]()
        for paper in sorted({number[0] for number in CLAIMS}):
            for setting in SETTINGS:
                found = {
                    item: self.sample(item)
                    for item in self.differences
                    if (item.number[0], item.setting) == (paper, setting)
                }
                # The same difference, such as one of a component that two claims name, is one hypothesis.
                hypotheses = {
                    (item.component or item.part, item.claim["metric"], item.read): sample.p
                    for item, sample in found.items()
                }
                count, rejected = len(hypotheses), false_discoveries([*hypotheses.values()])
                for item, sample in found.items():
                    verdict, row = _row(item, sample, rejected, count)
                    verdicts[item.number, setting].append(verdict)
                    numbers[item] = row
        counts = Counter((setting, combine(verdicts[number, setting])) for number in CLAIMS for setting in SETTINGS)
        by_verdict = [[verdict, *(counts[setting, verdict] for setting in SETTINGS)] for verdict in VERDICTS]
        decided = [
            [
                *(f"{number}: {claim['claim']}", _gains(claim["parts"].values())),
                *(combine(verdicts[number, setting]) for setting in SETTINGS),
            ]
            for number, claim in CLAIMS.items()
            if claim["parts"]
        ]
        columns = [
            *(
                "claim: difference",
                "setting",
                "metric",
                "layer norm",
                "searches",
                "n",
                "mean",
                "interval",
                "confidence",
                "p",
            ),
            *("found with 80%", "paper's gain, same data", "verdict"),
        ]
        undecided = [
            [f"{number}: {claim['claim']}", claim["why"]] for number, claim in CLAIMS.items() if "why" in claim
        ]
        return {
            "claims-counts": Table(
                ["verdict", *SETTINGS.values(), "all"], [[*row, sum(map(int, row[1:]))] for row in by_verdict]
            ),
            "claims": Table(["claim", "gain in the paper", *SETTINGS.values()], decided),
            "claims-numbers": Table(columns, [numbers[item] for item in self.differences]),
            "claims-undecided": Table(["claim", "why no kept run decides it"], undecided),
        }


def _pool(item: Difference) -> tuple[object, ...]:
    return item.setting, item.claim["metric"], item.read, len(item.terms)


def _pooled(samples: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Pool the variances of samples, and add their degrees of freedom."""
    kept = [values for values in samples if len(values) > 1]
    freedom = sum(len(values) - 1 for values in kept)
    return sum((len(values) - 1) * statistics.variance(values) for values in kept) / freedom, freedom


def _row(item: Difference, sample: Sample, rejected: int, count: int) -> tuple[str, list[object]]:
    """Return the verdict on a difference, and its row: a ratio, a distance, or percentage points."""
    confidence = 1 - ERROR * max(rejected, 1) / count
    interval = sample.interval(confidence)
    verdict = decide(sample.mean, interval, rejected=sample.p <= ERROR * rejected / count, gain=item.gain)
    effect = sample.detectable(min(ERROR * (rejected + 1) / count, ERROR))
    if verdict is None:
        verdict = TOO_FEW if item.asked is not None and effect > item.asked else INCONCLUSIVE
    metric = item.claim["metric"]
    factor = 1 if metric in NO_SHARES and item.read != "alpha" else 100
    place = f" ({CENTRES[item.setting]})" if item.read == "centres" else ""
    show = (lambda value: f"{math.exp(value):.2f}") if item.is_ratio else (lambda value: f"{factor * value:.2f}")
    norm = {None: MISSING, True: "yes", False: "no"}[item.has_norm]
    return verdict, [
        *(f"{item.number}: {item.name}{place}", SETTINGS[item.setting], METRIC_NAMES[metric], norm),
        *(sample.searches, sample.n, show(sample.mean), " to ".join(map(show, interval))),
        *(f"{100 * confidence:.2f}%", f"{sample.p:.3f}", MISSING if item.is_ratio else show(effect)),
        *(MISSING if item.gain is None else f"{100 * item.gain:g}", verdict),
    ]


def _gains(parts: Iterable[Mapping[str, float]]) -> str:
    """List the smallest gain of the parts for each data set of the paper."""
    smallest: dict[str, float] = {}
    for name, gain in (item for gains in parts for item in gains.items()):
        smallest[name] = min(gain, smallest.get(name, gain))
    return ", ".join(f"{gain:g} ({name})" for name, gain in smallest.items()) or MISSING


def tables(kept: Path) -> dict[str, Table]:
    """Make the tables of the page from the kept runs."""
    return Page(kept).tables()


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_kept(parser)
    kept = parser.parse_args().kept
    for name, table in tables(kept).items():
        write_table(table, name, "claims.py", kept)


if __name__ == "__main__":
    main()
