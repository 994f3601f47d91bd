"""Intervals and tests against plain Python with the same draws, and exact small cases."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from proxemic.metrics.confidence import (
    AveragedOver,
    Interval,
    bootstrap_intervals,
    bootstrap_statistic,
    paired_differences,
)
from proxemic.metrics.contingency import contingency, weighted_ami, weighted_nmi

pytestmark = pytest.mark.cpu

AVERAGES: tuple[AveragedOver, ...] = ("queries", "classes")


def queries(classes: int = 24, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw values that depend on the class, for unsorted classes of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (10 * classes,), generator=generator)
    effects = torch.randn(classes, generator=generator, dtype=torch.float64)
    return effects[labels] + torch.randn(len(labels), generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("average", AVERAGES)
def test_equals_a_bootstrap_in_plain_python(average: AveragedOver) -> None:
    values, labels = queries()
    values[labels == 3] = torch.nan
    values[::7] = torch.nan
    by_class = [[v for v in values[labels == c].tolist() if not math.isnan(v)] for c in range(24) if c != 3]

    def mean(parts: list[list[float]]) -> float:
        if average == "classes":
            parts = [[sum(part) / len(part)] for part in parts]
        return sum(map(sum, parts)) / sum(map(len, parts))

    # The same draws: of class indices, resample by resample.
    drawn = torch.randint(23, (300, 23), generator=torch.Generator().manual_seed(5)).tolist()
    means = sorted(mean([by_class[c] for c in resample]) for resample in drawn)

    def quantile(share: float) -> float:
        below = math.floor(share * 299)
        return means[below] + (share * 299 - below) * (means[below + 1] - means[below])

    found = bootstrap_intervals({"m": values}, labels, average=average, level=0.9, resamples=300, seed=5)["m"]
    assert found.value == pytest.approx(mean(by_class), rel=1e-14)
    assert (found.low, found.high) == pytest.approx((quantile(0.05), quantile(0.95)), rel=1e-12)


@pytest.mark.parametrize("average", AVERAGES)
def test_order_and_names_do_not_matter(average: AveragedOver) -> None:
    values, labels = queries()
    values[3] = torch.nan
    other = values.flip(0).nan_to_num().where(~values.isnan(), torch.nan)
    expected = bootstrap_intervals({"m": values}, labels, average=average)
    paired = paired_differences({"m": values}, {"m": other}, labels, average=average)
    beside = bootstrap_intervals({"x": other, "m": values}, labels, average=average)["m"]
    assert (beside.low, beside.high) == pytest.approx((expected["m"].low, expected["m"].high), rel=1e-12)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    for rows, names in ((order, labels), (torch.arange(len(labels)), labels * 3 + 2**40), (order, labels - 5)):
        assert bootstrap_intervals({"m": values[rows]}, names[rows], average=average) == expected
        assert paired_differences({"m": values[rows]}, {"m": other[rows]}, names[rows], average=average) == paired


def test_the_value_is_the_correctly_rounded_mean() -> None:
    values = torch.tensor([1e16, 1.0, -1e16, 1.0, 1.0, 0.1], dtype=torch.float64)
    found = bootstrap_intervals({"m": values}, torch.tensor([0, 0, 1, 1, 2, 2]))["m"]
    assert found.value == math.fsum(values.tolist()) / 6


def test_the_seed_decides() -> None:
    values, labels = queries()
    first, again, other = (bootstrap_intervals({"m": values}, labels, seed=seed)["m"] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.value == other.value


def test_does_not_depend_on_how_many_resamples_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = queries(classes=20)
    both = {"m": values}, {"m": values.roll(1)}, labels
    expected = paired_differences(*both)["m"]
    monkeypatch.setattr("proxemic.metrics.confidence._NUMBERS", 100)
    found = paired_differences(*both)["m"]
    assert found.p_value == expected.p_value
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_a_metric_that_few_classes_have() -> None:
    values = torch.tensor([1.0] + [torch.nan] * 23)
    found = bootstrap_intervals({"rare": values, "all": torch.arange(24.0)}, torch.arange(24), resamples=50)
    assert found["rare"] == Interval(1.0, 1.0, 1.0)
    assert found["all"].low < 11.5 < found["all"].high


@pytest.mark.parametrize("classes", [1, 2, 19])
def test_few_classes_have_no_interval(classes: int) -> None:
    values, labels = queries(classes)
    values, labels = torch.cat([values, torch.full((9,), torch.nan)]), torch.cat([labels, torch.full((9,), 99)])
    found = bootstrap_intervals({"m": values}, labels)["m"]
    assert found.value == pytest.approx(values.nanmean().item())
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    paired = paired_differences({"m": values}, {"m": values - 1}, labels)["m"]
    assert paired.difference == pytest.approx(1.0)
    assert paired.p_value == pytest.approx(max(2 / 2**classes, 1 / 2001), rel=0.01)  # random signs from 15 classes on
    assert math.isnan(paired.low)
    assert math.isnan(bootstrap_statistic(lambda weights: weights.sum(1), classes).high)


@pytest.mark.parametrize("average", AVERAGES)
def test_a_mean_as_a_statistic(average: AveragedOver) -> None:
    values, labels = queries()
    sums = torch.stack([values[labels == c].sum() for c in range(24)])
    counts = labels.bincount().double()
    if average == "classes":
        sums, counts = sums / counts, torch.ones(24, dtype=torch.float64)
    found = bootstrap_statistic(lambda weights: weights @ sums / (weights @ counts), 24)
    expected = bootstrap_intervals({"m": values}, labels, average=average)["m"]
    assert found.value == pytest.approx(expected.value)
    assert found.high - found.low == pytest.approx(expected.high - expected.low)


@pytest.mark.parametrize("score", [weighted_nmi, weighted_ami])
def test_clusterings_lie_within_their_interval(score: Callable[[Tensor, Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 30
    clusters = torch.where(torch.rand(600, generator=generator) < 0.02 * labels, labels.roll(5), labels)
    table = contingency(labels, clusters)
    found = bootstrap_statistic(lambda weights: score(table, weights), 30, resamples=200)
    assert found.low < found.value < found.high < 1
    assert found.high - found.low < 0.2
    perfect = contingency(labels, labels)
    assert bootstrap_statistic(lambda weights: score(perfect, weights), 30, resamples=50) == Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize("average", AVERAGES)
def test_p_values_of_few_classes_by_hand(average: AveragedOver) -> None:
    first, labels = queries(classes=5)
    second = first - 0.4 * torch.randn(len(labels), generator=torch.Generator().manual_seed(1)) - 0.1
    gaps = [(first - second)[labels == c] for c in range(5)]
    sums = [float(gap.mean() if average == "classes" else gap.sum()) for gap in gaps]
    ways = [abs(sum(map(math.prod, zip(sums, signs, strict=True)))) for signs in itertools.product((1, -1), repeat=5)]
    expected = sum(way >= abs(sum(sums)) * (1 - 1e-12) for way in ways) / 32
    found = paired_differences({"m": first}, {"m": second}, labels, average=average)["m"]
    assert found.p_value == expected
    assert 2 / 32 < expected < 1


def test_classes_without_a_difference_leave_the_p_value_exact() -> None:
    first, second = torch.ones(30), torch.ones(30)
    second[[4, 9, 20]] = 0.5
    assert paired_differences({"m": first}, {"m": second}, torch.arange(30))["m"].p_value == 2 / 8


def test_random_exchanges_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first, labels = queries(classes=14)
    both = {"m": first}, {"m": first.roll(1) - 0.3}, labels
    exact = paired_differences(*both)["m"].p_value
    monkeypatch.setattr("proxemic.metrics.confidence._EXACT", 0)
    assert 0.05 < exact < 0.95
    assert paired_differences(*both, resamples=20_000)["m"].p_value == pytest.approx(exact, abs=0.015)
    clear = {"m": first}, {"m": first - 1}, labels
    assert paired_differences(*clear, resamples=99)["m"].p_value == 1 / 100


def test_equal_models_and_exchanged_ones() -> None:
    first, labels = queries()
    second = first.roll(1)
    same = paired_differences({"m": first}, {"m": first}, labels)["m"]
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    one = paired_differences({"m": first}, {"m": second}, labels)["m"]
    other = paired_differences({"m": second}, {"m": first}, labels)["m"]
    assert (one.difference, one.p_value) == (-other.difference, other.p_value)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), rel=1e-9)
    means = [sum(value.tolist()) / len(value) for value in (first, second)]
    assert one.difference == pytest.approx(means[0] - means[1], abs=1e-12)
    assert one.low <= one.difference <= one.high


def test_queries_without_a_value_in_both_are_left_out() -> None:
    first, labels = queries()
    second = first.roll(1)
    kept = torch.rand(len(first), generator=torch.Generator().manual_seed(0)) < 0.8
    holes = [{"m": value.where(kept, torch.nan)} for value in (first, second)]
    assert paired_differences(holes[0], holes[1], labels) == paired_differences(
        {"m": first[kept]}, {"m": second[kept]}, labels[kept]
    )


@pytest.mark.usefixtures("unchecked")
def test_refuses() -> None:
    values, labels = queries(classes=12)
    hole = values.clone()
    hole[[2, 7]] = torch.nan
    infinite = values.clone()
    infinite[0] = torch.inf
    interval: list[tuple[str, Callable[[], object]]] = [
        (r"m has no value for any of 120 queries", lambda: bootstrap_intervals({"m": values * torch.nan}, labels)),
        (r"m has infinite values", lambda: bootstrap_intervals({"m": infinite}, labels)),
        (r"m has shape \(119,\) but must be \[120\]", lambda: bootstrap_intervals({"m": values[1:]}, labels)),
        (r"classes has torch.float64", lambda: bootstrap_intervals({"m": values}, labels.double())),
        (r"values has no metric", lambda: bootstrap_intervals({}, labels)),
        (r"the metrics \['b'\] but first \['a'\]", lambda: paired_differences({"a": values}, {"b": values}, labels)),
        (
            r"m has a value in one model only for 2 of 120",
            lambda: paired_differences({"m": hole}, {"m": values}, labels),
        ),
    ]
    for message, call in interval:
        with pytest.raises(ValueError, match=message):
            call()
    for level in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(ValueError, match="level is"):
            bootstrap_intervals({"m": values}, labels, level=level)
    for resamples in (0, True, 10**9):
        with pytest.raises(ValueError, match="resamples is"):
            paired_differences({"m": values}, {"m": values}, labels, resamples=resamples)
    with pytest.raises(ValueError, match="average is 'macro' but must be 'queries' or 'classes'"):
        bootstrap_intervals({"m": values}, labels, average="macro")  # type: ignore[arg-type]
