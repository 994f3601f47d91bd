"""Confidence intervals of metrics and a paired test of two models, by resampling classes.

Queries of one class are not independent, because they look for the same images. So whole classes are drawn with
replacement, each with all its queries (the cluster bootstrap: Davison and Hinkley, Bootstrap Methods and Their
Application, 1997, section 3.8). An interval does not include the variance of anything that is not resampled, such as
training.

With few classes the interval would be far too narrow (docs/benchmarks.md has figures), so there is none below
`FEWEST_CLASSES`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from proxemic.metrics.arrays import as_integers, take_arrays

AveragedOver = Literal["queries", "classes"]
FEWEST_CLASSES = 20
"""Smallest number of classes for which an interval is computed."""

MOST_RESAMPLES = 100_000
"""Largest number of resamples: more would take minutes and change no printed digit of a bound."""

_NUMBERS = 2**20  # weights held at once: 8 MB
_EXACT = 14  # up to this many classes, all sign changes (16,384) are tried


@dataclass(frozen=True)
class Interval:
    """A value and the bounds of its confidence interval, NaN with fewer than `FEWEST_CLASSES` classes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """Difference of the values of two models, with bounds as in `Interval`.

    Args:
        difference: Value of the first model less that of the second.
        low: Lower bound of the difference.
        high: Upper bound of the difference.
        p_value: Probability that equal models differ at least as much, in either direction.
    """

    difference: float
    low: float
    high: float
    p_value: float


@take_arrays("values", "classes")
def bootstrap_intervals(
    values: Mapping[str, Shaped[Tensor, "..."]],
    classes: Shaped[Tensor, "..."],
    *,
    average: AveragedOver = "queries",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Compute percentile intervals of mean metrics; every metric uses the same draws of classes.

    Neither values nor bounds depend on the order of the queries.

    Args:
        values: Values `[queries]` by metric; NaN for a query without a value, which the mean leaves out.
        classes: `[queries]`, the class of each query as an integer.
        average: ``"queries"``, or ``"classes"`` for the mean over classes of the mean over each class's queries.
        level: Confidence level, in (0, 1).
        resamples: Number of draws, from 1 to `MOST_RESAMPLES`.
        seed: Seed of the draws.

    Returns:
        The interval of each metric.

    Raises:
        ValueError: If an argument is out of range or has a wrong shape, or a metric has no value at all.

    >>> classes = torch.arange(120) // 3  # 40 classes; every fourth is never found
    >>> bootstrap_intervals({"recall@1": (classes % 4 > 0).float()}, classes)
    {'recall@1': Interval(value=0.75, low=0.625, high=0.875)}
    >>> bootstrap_intervals({"recall@1": torch.tensor([1.0, 1.0, 0.0])}, torch.tensor([0, 0, 1]))
    {'recall@1': Interval(value=0.6666666666666666, low=nan, high=nan)}
    """
    _check(level, resamples)
    return _intervals(*_class_sums(values, classes, average), level, resamples, seed)


def bootstrap_statistic(
    statistic: Callable[[Float64[Tensor, "resamples classes"]], Float64[Tensor, "resamples"]],
    num_classes: int,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Compute the percentile interval of a statistic that is not a mean over queries, such as NMI.

    A class that is drawn twice counts twice, so a resample has fewer distinct classes. This biases such statistics: NMI
    by at least a quarter of the width of its interval. The quantiles are therefore shifted so that the mean over
    resamples equals the value. Anything that the statistic holds fixed, such as the clusters of NMI, adds nothing to
    the interval: in simulations at level 0.95, nine in ten intervals of NMI and AMI covered the truth.

    The statistic is a function of weights `[resamples, classes]`, the number of times that each class counts, and
    returns `[resamples]` values. Other arguments and errors: as `bootstrap_intervals`.

    >>> from proxemic.metrics.contingency import contingency, weighted_nmi
    >>> table = contingency(torch.arange(60) // 2, torch.arange(60) // 3)
    >>> bootstrap_statistic(lambda weights: weighted_nmi(table, weights), num_classes=30)
    Interval(value=0.864..., low=0.82..., high=0.90...)
    """
    _check(level, resamples)
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f"num_classes is {num_classes!r} but must be an integer of at least 1")
    value = float(statistic(torch.ones(1, num_classes, dtype=torch.float64)))
    drawn = _resample(statistic, torch.empty(resamples, dtype=torch.float64), num_classes, seed)
    return Interval(value, *(_bounds(drawn, level, num_classes) - drawn.nanmean() + value).tolist())


@take_arrays("first", "second", "classes")
def paired_differences(
    first: Mapping[str, Shaped[Tensor, "..."]],
    second: Mapping[str, Shaped[Tensor, "..."]],
    classes: Shaped[Tensor, "..."],
    *,
    average: AveragedOver = "queries",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Compare two models on the same queries, metric by metric.

    The interval is computed like that of `bootstrap_intervals`. The p-value is that of a two-sided sign-flip
    permutation test over classes: the two models are exchanged in all queries of some classes, and the p-value is the
    fraction of such exchanges with a mean difference at least as large. If at most 14 classes differ, all exchanges are
    tried, otherwise `resamples` random ones and the observed one. The test is valid for few classes, but its p-value
    cannot be small: with 5 classes it is at least 0.0625. It is not corrected for multiple metrics.

    Arguments and errors are those of `bootstrap_intervals`. `first` and `second`, the values of two models, must have
    the same metrics, and NaN for the same queries.

    >>> better, worse = torch.tensor([1.0, 0.8, 0.9, 0.6]), torch.tensor([0.5, 0.3, 0.4, 0.6])
    >>> paired_differences({"map@r": better}, {"map@r": worse}, torch.tensor([0, 1, 2, 3]))["map@r"].p_value
    0.25
    """
    if first.keys() != second.keys():
        raise ValueError(f"second has the metrics {sorted(second)} but first {sorted(first)}; they must be the same")
    _check(level, resamples)
    differences = {}
    for name, values in first.items():
        if values.shape != second[name].shape:
            raise ValueError(
                f"second has shape {tuple(second[name].shape)} for {name} but first {tuple(values.shape)}; "
                "they must belong to the same queries"
            )
        ours, theirs = values.cpu().double(), second[name].cpu().double()
        only = int((ours.isnan() != theirs.isnan()).sum())
        if only:
            raise ValueError(
                f"{name} has a value in one model only for {only} of {len(ours)} queries; compare on the same queries"
            )
        differences[name] = ours - theirs
    means, sums, counts = _class_sums(differences, classes, average)
    intervals = _intervals(means, sums, counts, level, resamples, seed)
    return {
        name: PairedDifference(interval.value, interval.low, interval.high, p_value)
        for (name, interval), p_value in zip(intervals.items(), _sign_test(sums, resamples, seed), strict=True)
    }


def _check(level: float, resamples: int) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level} but must be between 0 and 1, for example 0.95")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or not 1 <= resamples <= MOST_RESAMPLES:
        raise ValueError(f"resamples is {resamples!r} but must be an integer from 1 to {MOST_RESAMPLES:,}")


def _class_sums(
    values: Mapping[str, Shaped[Tensor, "..."]], classes: Shaped[Tensor, "..."], average: AveragedOver
) -> tuple[dict[str, float], Float64[Tensor, "some metrics"], Float64[Tensor, "some metrics"]]:
    """Compute the means, and the sum and number of terms of each class that has a value of some metric."""
    if average not in ("queries", "classes"):
        raise ValueError(f"average is {average!r} but must be 'queries' or 'classes'")
    if not values:
        raise ValueError("values has no metric; pass the values of each query of at least one")
    classes, order = as_integers("classes", classes, len(classes), "query").cpu().sort(stable=True)
    sizes = classes.unique_consecutive(return_counts=True)[1].tolist()
    means, sums, counts = {}, [], []
    for name, value in values.items():
        if value.shape != classes.shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)} but must be [{len(classes)}], one per query")
        if bool(value.isinf().any()):
            raise ValueError(f"{name} has infinite values; a query without a value has NaN")
        by_class = [part[~part.isnan()].tolist() for part in value.cpu().double()[order].split(sizes)]
        numbers = [len(part) for part in by_class]
        if not any(numbers):
            raise ValueError(f"{name} has no value for any of {len(value)} queries; check the labels")
        if average == "classes":
            by_class = [[math.fsum(part) / len(part)] if part else [] for part in by_class]
            numbers = [len(part) for part in by_class]
        # fsum rounds only once, so the order of the queries does not matter.
        means[name] = math.fsum(chain(*by_class)) / sum(numbers)
        sums.append([math.fsum(part) for part in by_class])
        counts.append(numbers)
    total, count = (torch.tensor(value, dtype=torch.float64).T for value in (sums, counts))
    some = (count > 0).any(1)
    return means, total[some], count[some]


def _intervals(
    means: dict[str, float],
    sums: Float64[Tensor, "classes metrics"],
    counts: Float64[Tensor, "classes metrics"],
    level: float,
    resamples: int,
    seed: int,
) -> dict[str, Interval]:
    def ratios(weights: Float64[Tensor, "some classes"]) -> Float64[Tensor, "some metrics"]:
        return weights @ sums / (weights @ counts)  # NaN if no class with a value was drawn

    drawn = _resample(ratios, torch.empty(resamples, len(means), dtype=torch.float64), len(sums), seed)
    bounds = _bounds(drawn, level, len(sums)).T.tolist()
    return {name: Interval(value, *bound) for (name, value), bound in zip(means.items(), bounds, strict=True)}


def _resample(
    statistic: Callable[[Float64[Tensor, "some classes"]], Float64[Tensor, "some *metrics"]],
    values: Float64[Tensor, "resamples *metrics"],
    classes: int,
    seed: int,
) -> Float64[Tensor, "resamples *metrics"]:
    """Compute the statistic of all resamples into ``values``."""
    generator, one = torch.Generator().manual_seed(seed), torch.ones(1, dtype=torch.float64)
    # In place: many small results between large temporary tensors would fragment the heap by gigabytes.
    for part in values.split(_at_once(classes)):
        drawn = torch.randint(classes, (len(part), classes), generator=generator)
        weights = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(1, drawn, one.expand_as(drawn))
        part.copy_(statistic(weights))
    return values


def _bounds(drawn: Float64[Tensor, "resamples *metrics"], level: float, classes: int) -> Float64[Tensor, "2 *metrics"]:
    if classes < FEWEST_CLASSES:
        return torch.full((2, *drawn.shape[1:]), torch.nan, dtype=torch.float64)
    tail = (1.0 - level) / 2.0
    return drawn.nanquantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64), dim=0)


def _sign_test(sums: Float64[Tensor, "classes metrics"], resamples: int, seed: int) -> list[float]:
    differing = sums[(sums != 0).any(1)]
    classes = len(differing)
    # Tolerates rounding, so that the same terms in another order are not below.
    least = sums.sum(0).abs() - 1e-12 * sums.abs().sum(0)
    if classes <= _EXACT:
        signs = 2.0 * (torch.arange(2**classes)[:, None] >> torch.arange(classes) & 1).double() - 1.0
        return ((signs @ differing).abs() >= least).double().mean(0).tolist()
    generator = torch.Generator().manual_seed(seed)
    hits = torch.ones_like(least)
    for part in torch.arange(resamples).split(_at_once(classes)):
        signs = 2.0 * torch.randint(2, (len(part), classes), generator=generator).double() - 1.0
        hits += ((signs @ differing).abs() >= least).sum(0)
    return (hits / (resamples + 1)).tolist()


def _at_once(classes: int) -> int:
    return max(1, _NUMBERS // classes)
