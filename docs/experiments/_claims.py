"""List the empirical claims of the three papers, with the runs that decide each."""

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _kept import Kept
from _searches import SEARCHES
from centres import rows_of

CENTRES = {"cars-features": "makers", "glyphs-small": "letters"}
"""The data whose classes have several centres, by the setting with the same network."""
METRIC_NAMES = {"recall@1": "Recall@1", "map@r": "MAP@R", "ndcg@8": "nDCG@8", "tar": "TAR at a FAR of 0.001"}

Read = Callable[[Path, str, str, str], Mapping[int, float]]
"""Read values by seed, given the folder of what is kept, the setting, the name of the runs and the metric."""


def read_runs(kept: Path, setting: str, name: str, metric: str) -> Mapping[int, float]:
    """Read the runs of a loss; after `@` the name may have a condition."""
    loss, _, condition = name.partition("@")
    return Kept(kept / setting).runs(loss, condition)[metric]


def read_reality_check(kept: Path, setting: str, name: str, metric: str) -> Mapping[int, float]:
    """Read the repetitions of a loss in a reality check; after `@` the name has the kind of embedding."""
    loss, _, kind = name.partition("@")
    return Kept(kept / setting).check(loss).get((kind, metric), {})


def read_centres(kept: Path, setting: str, name: str, metric: str) -> Mapping[int, float]:
    """Read the runs of a loss with K proxies per class, drawn at random, on classes with several centres."""
    loss, _, k = name.partition("@K=")
    path = rows_of(Kept(kept / CENTRES[setting]), (loss, int(k), "drawn")) if setting in CENTRES else None
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {int(row["seed"]): float(row[metric]) for row in csv.DictReader(file)}


@dataclass(frozen=True)
class Difference:
    """The runs that are added, those that are subtracted, and the gains of the paper by its data set, in points."""

    plus: tuple[str, ...]
    minus: tuple[str, ...]
    gains: Mapping[str, float] = field(default_factory=dict[str, float])
    ratio = False

    @property
    def name(self) -> str:
        """The difference as the tables show it."""
        plus, minus = ([_label(name) for name in names] for names in (self.plus, self.minus))
        return " − ".join([" + ".join(plus), *minus])

    def values(self, kept: Path, setting: str, metric: str, read: Read) -> list[float]:
        """Compute the difference for each seed that all its runs have."""
        plus, minus = ([read(kept, setting, name, metric) for name in names] for names in (self.plus, self.minus))
        seeds = sorted(set.intersection(*({*values} for values in (*plus, *minus))))
        return [sum(values[seed] for values in plus) - sum(values[seed] for values in minus) for seed in seeds]


@dataclass(frozen=True)
class SpreadRatio:
    """The spread of one metric over the seeds of a loss, divided by the spread of another."""

    over: str
    under: str
    gains: Mapping[str, float] = field(default_factory=dict[str, float])
    ratio = True

    @property
    def name(self) -> str:
        """The ratio as the tables show it."""
        return f"spread over seeds of {METRIC_NAMES[self.over]} / of {METRIC_NAMES[self.under]}"

    def values(self, kept: Path, setting: str, metric: str, read: Read) -> list[float]:
        """Compute the logarithm of the ratio for each loss; losses whose runs are identical count once."""
        ratios: dict[tuple[float, ...], float] = {}
        for loss in SEARCHES:
            over, under = (tuple(read(kept, setting, loss, name).values()) for name in (self.over, self.under))
            if len(over) > 1:
                ratios[over] = math.log(statistics.stdev(over) / statistics.stdev(under))
        return [*ratios.values()]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper: all its parts must be positive. A claim without parts says why no kept run decides it."""

    statement: str
    metric: str = ""
    parts: Sequence[Difference | SpreadRatio] = ()
    read: Read = read_runs
    why: str = ""


def _label(name: str) -> str:
    loss, _, condition = name.partition("@")
    return f"{loss} ({condition})" if condition else loss


def _pair(one: str, other: str, **gains: float) -> Difference:
    return Difference((one,), (other,), gains)


def _conditions(one: str, other: str, condition: str, **gains: float) -> Difference:
    """Make the change of `one − other` from a condition to the runs without it."""
    return Difference((one, f"{other}@{condition}"), (other, f"{one}@{condition}"), gains)


_CONTROL = "euclidean-softmax-two-phases"

MEAN_PROXY = [
    Claim(
        "The regulariser on the mean proxy raises Recall@1 of the softmax loss (table 4.1)",
        "recall@1",
        [_pair("softmax-mean-proxy", "softmax", CUB=0.47, Cars196=0.92)],
    ),
    Claim(
        "The regulariser raises Recall@1 in every epoch (figures 4.1 and 4.2)",
        why="no histories are kept ([commands](papers.md))",
    ),
    Claim(
        "The regulariser brings images nearer to their proxies (section 3.2)",
        why="no distances are kept ([the gap](analysis.md#the-gap))",
    ),
]

_FAMILY = {"mpa": "MPA", "mpa-dw": "MPA-DW", "mpa-ap": "MPA-AP"}
# Tables 4 and 5: the losses of the family less Proxy-Anchor and less SoftTriple, both "(our)", on CUB and on Cars196.
_OVER_PROXY_ANCHOR = {
    "recall@1": {"mpa": (0.6, 0.7), "mpa-dw": (0.3, 0.5), "mpa-ap": (0.5, 1.0)},
    "ndcg@8": {"mpa": (0.4, 0.4), "mpa-dw": (0.2, 0.4), "mpa-ap": (0.4, 1.2)},
}
_OVER_SOFT_TRIPLE = {
    "recall@1": {"mpa": (1.6, 0.8), "mpa-dw": (1.3, 0.6), "mpa-ap": (1.5, 1.1)},
    "ndcg@8": {"mpa": (1.9, 0.9), "mpa-dw": (1.7, 0.9), "mpa-ap": (1.9, 1.7)},
}
MULTI_PROXY_ANCHOR = [
    *(
        Claim(
            f"{_FAMILY[loss]} is above {rival_name} by {METRIC_NAMES[metric]} (tables 4 and 5)",
            metric,
            [_pair(loss, rival, CUB=cub, Cars196=cars)],
        )
        for rival, rival_name, gains in (
            ("proxy-anchor", "Proxy-Anchor", _OVER_PROXY_ANCHOR),
            ("soft-triple", "SoftTriple", _OVER_SOFT_TRIPLE),
        )
        for metric, by_loss in gains.items()
        for loss, (cub, cars) in by_loss.items()
    ),
    Claim(
        "MPA-AP is the best of the family by Recall@1 (table 5)",
        "recall@1",
        [_pair("mpa-ap", "mpa", Cars196=0.3), _pair("mpa-ap", "mpa-dw", Cars196=0.5)],
    ),
    Claim(
        "By MAP@R, Proxy-Anchor is above the family and SoftTriple (tables 4 and 5)",
        "map@r",
        [
            _pair("proxy-anchor", "mpa", CUB=0.1, Cars196=0.4),
            _pair("proxy-anchor", "mpa-dw", CUB=0.4, Cars196=0.7),
            _pair("proxy-anchor", "mpa-ap", CUB=0.1, Cars196=0.2),
            _pair("proxy-anchor", "soft-triple", CUB=1.2, Cars196=1.3),
        ],
    ),
    Claim(
        "MPA is superior to Proxy-Anchor when a class has many images (section 4.3): its lead grows from few to all",
        "recall@1",
        [_conditions("mpa", "proxy-anchor", "3 images", CUB=0.7, Cars196=0.8)],
    ),
    Claim(
        "MPA-AP is superior to Proxy-Anchor when a class has many images: its lead grows from few to all",
        "recall@1",
        [_conditions("mpa-ap", "proxy-anchor", "3 images", Cars196=0.5)],
    ),
    Claim(
        "When a class has few images, SoftTriple is above Proxy-Anchor and MPA-AP (table 6)",
        "recall@1",
        [
            _pair("soft-triple@3 images", "proxy-anchor@3 images", SOP=1.4),
            _pair("soft-triple@3 images", "mpa-ap@3 images", SOP=0.9),
        ],
    ),
    Claim(
        "Data-wise losses (MPA-AP, SoftTriple) depend less on sampling than Proxy-Anchor (section 4.3): "
        "small batches cost them less",
        "recall@1",
        [_conditions("proxy-anchor", loss, "batches of 16") for loss in ("mpa-ap", "soft-triple")],
    ),
    Claim(
        "MPA with 8 proxies per class is above MPA with one (tables 7 and 8)",
        "recall@1",
        [_pair("mpa@K=8", "mpa@K=1", CUB=0.7, Cars196=0.6)],
    ),
    Claim(
        "The same where a class has several known centres: makers of cars, and letters",
        "recall@1",
        [_pair("mpa@K=8", "mpa@K=1", CUB=0.7, Cars196=0.6)],
        read_centres,
    ),
    Claim(
        "MPA with 8 proxies per class is above MPA with 4 and with 16 (tables 7 and 8)",
        "recall@1",
        [_pair("mpa@K=8", "mpa@K=4", CUB=0.1, Cars196=0.5), _pair("mpa@K=8", "mpa@K=16", CUB=1.5, Cars196=0.2)],
    ),
    Claim(
        "nDCG@k is more stable than Recall@k (section 3.5): over seeds Recall@1 spreads more than nDCG@8",
        "ndcg@8",
        [SpreadRatio("recall@1", "ndcg@8")],
    ),
    Claim(
        "The gradients depend on what table 1 says",
        why="needs no run: gradients are compared exactly ([characteristics](characteristics.md))",
    ),
    Claim(
        "A step costs what table 2 says",
        why="needs no run: operations are counted ([costs](analysis.md#costs))",
    ),
]

_WARP = "warp-off-first"
WARPING = [
    Claim(
        "The warp is above the same Euclidean softmax without it (table I), in both phases",
        "recall@1",
        [_pair("warp", _CONTROL, CUB=3.5, Cars196=1.0, SOP=2.4)],
    ),
    Claim(
        "The same, with the warp off in the first phase",
        "recall@1",
        [_pair(_WARP, _CONTROL, CUB=3.5, Cars196=1.0, SOP=2.4)],
    ),
    Claim(
        "The warp works by moving the minimum off the proxy (section III): both forms gain where no proxy is a minimum",
        "recall@1",
        [_pair("warp-attracting", _CONTROL), _pair("warp-off-first-attracting", _CONTROL)],
    ),
    Claim(
        "A second phase helps (section IV-B), here without a warp",
        "recall@1",
        [_pair(_CONTROL, "euclidean-softmax")],
    ),
    *(
        Claim(f"The warp is above {name} ({table})", "recall@1", [_pair(_WARP, rival, **gains)])
        for rival, name, table, gains in (
            ("softmax", "the normalised softmax", "table I", {"CUB": 11.3, "Cars196": 7.0, "SOP": 3.7}),
            ("proxy-nca-plus-plus", "ProxyNCA++", "tables I and II", {"CUB": 5.9, "Cars196": 6.6, "SOP": 2.9}),
            ("proxy-anchor", "Proxy-Anchor", "table I", {"CUB": 2.9, "Cars196": 3.3, "SOP": 2.8}),
            ("soft-triple", "SoftTriple", "table I", {"CUB": 7.2, "Cars196": 6.7, "SOP": 3.6}),
            ("multi-similarity", "multi-similarity", "table I", {"CUB": 6.9, "Cars196": 7.1, "SOP": 3.7}),
            ("hist", "HIST", "table I", {"CUB": 1.2, "Cars196": 1.6, "SOP": 0.5}),
        )
    ),
    Claim("The warp is above the Euclidean softmax by NMI (table I)", why="no NMI is kept"),
    Claim(
        "Seeds spread as little as table II says",
        why="the table compares nothing ([our spread](results.md))",
    ),
    Claim(
        "Functions of distance order how far images end from their proxies (table III)",
        why="its runs are not kept ([distances](analysis.md#trajectories-and-functions-of-distance))",
    ),
    Claim(
        "The strong warp has the best Recall@1 of table III",
        why="its runs are not kept ([the same runs](analysis.md#trajectories-and-functions-of-distance))",
    ),
    Claim(
        "Forces on embeddings and proxies align as training goes on (figure 4)",
        why="its runs are not kept ([forces](analysis.md#forces-over-a-training))",
    ),
    Claim(
        "Recall@1 rises, stays and drops with α (figure 6)",
        why="its runs are not kept; no image lay within α ([sweeps](analysis.md#sweeps))",
    ),
    Claim(
        "Recall@1 is stable if neither k1 nor k2 is 1 (figure 7)",
        why="its runs are not kept; they had one seed ([sweeps](analysis.md#sweeps))",
    ),
    Claim(
        "A larger Δ first helps, then hurts (figure 8)",
        why="its runs are not kept ([sweeps](analysis.md#sweeps))",
    ),
    Claim(
        "The warp is more robust to corruptions than the Euclidean softmax, ProxyNCA++ and HIST (table IV)",
        why="its runs are not kept ([robustness](analysis.md#robustness))",
    ),
    Claim(
        "The warp separates clusters better and keeps them compact (figure 10)",
        why="its runs are not kept ([toy plots](analysis.md#toy-plots))",
    ),
    Claim(
        "The warp verifies pairs better than the Euclidean softmax (table V), here pairs of photographs of cars",
        "tar",
        [_pair("warp-off-first-attracting@verification", f"{_CONTROL}@verification")],
    ),
    Claim(
        "In verification of faces the warp is competitive with losses of cosines (table V)",
        why="“competitive” names no direction, and no faces were available",
    ),
    Claim(
        "In the reality check the warp leads as a complete model (tables VI to VIII)",
        "map@r",
        [
            _pair("warp@complete", f"{rival}@complete", **gains)
            for rival, gains in (
                ("softmax", {"SOP": 2.78}),
                ("proxy-anchor", {"CUB": 1.02, "Cars196": 5.34, "SOP": 13.79}),
                ("proxy-nca-plus-plus", {"CUB": 0.8, "Cars196": 2.35, "SOP": 0.55}),
                ("soft-triple", {"Cars196": 2.01}),
                ("multi-similarity", {"Cars196": 15.25}),
                ("hist", {"CUB": 0.5, "Cars196": 2.07}),
            )
        ],
        read_reality_check,
    ),
    Claim(
        "In the reality check the warp is above Proxy-Anchor, separated and concatenated",
        "map@r",
        [
            _pair("warp@separated", "proxy-anchor@separated", CUB=0.78, Cars196=1.43, SOP=2.52),
            _pair("warp@concatenated", "proxy-anchor@concatenated", CUB=2.75, Cars196=2.38, SOP=2.49),
        ],
        read_reality_check,
    ),
    Claim(
        "In the reality check the warp is above ProxyNCA++, separated (but on Cars196) and concatenated",
        "map@r",
        [
            _pair("warp@separated", "proxy-nca-plus-plus@separated", CUB=0.58, SOP=0.76),
            _pair("warp@concatenated", "proxy-nca-plus-plus@concatenated", CUB=1.65, Cars196=0.42, SOP=0.59),
        ],
        read_reality_check,
    ),
    Claim(
        "A complete model of the warp is above its separated models (appendix D-D)",
        "map@r",
        [_pair("warp@complete", "warp@separated", CUB=3.75, Cars196=7.16, SOP=2.71)],
        read_reality_check,
    ),
    Claim(
        "Concatenated models of the warp are above a complete one (appendix D-D)",
        "map@r",
        [_pair("warp@concatenated", "warp@complete", CUB=1.71, Cars196=2.12, SOP=1.64)],
        read_reality_check,
    ),
]

PAPERS = {"A": MEAN_PROXY, "B": MULTI_PROXY_ANCHOR, "C": WARPING}
CLAIMS = {f"{letter}{place}": claim for letter, claims in PAPERS.items() for place, claim in enumerate(claims, 1)}
"""The claims by their number: A is the thesis on the mean proxy, B the multi-proxy anchor family, C the warping."""
