"""Open-set identification against brute force in plain Python."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from proxemic.metrics import FEWEST_CLASSES, bootstrap_intervals, open_set_identification
from proxemic.metrics.open_set import (
    Nearest,
    OpenSetIdentification,
    _Sample,
    identification_of,
    nearest_other_classes,
    nearest_others,
)

pytestmark = pytest.mark.cpu

RATES = (0.1, 0.25, 1 / 3, 0.5, 0.9)
Rows = list[tuple[list[float], int]]


@st.composite
def sets(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """Queries and a gallery on a small grid, so that there are many ties; classes 0 to 2 of the gallery, 2 to 4 not."""
    point = st.lists(st.integers(-2, 2).map(float), min_size=2, max_size=2)
    gallery = draw(st.lists(st.tuples(point, st.integers(0, 2)), min_size=1, max_size=6))
    queries = draw(st.lists(st.tuples(point, st.integers(0, 4)), min_size=2, max_size=16))
    have = {label for _, label in gallery}
    kinds = {label in have for _, label in queries}
    if len(kinds) < 2:
        queries += [(gallery[0][0], gallery[0][1]), ([1.0, 0.0], 4)]
    return queries, gallery


def distances(query: list[float], gallery: Rows) -> list[tuple[float, int]]:
    return [(math.dist(query, row), label) for row, label in gallery]


def oracle(queries: Rows, gallery: Rows, rate: float) -> tuple[float, float, float]:
    """Compute threshold, DIR and reached FAR by trying all thresholds that make a difference."""
    have = {label for _, label in gallery}
    mated, alarms = [], []
    for query, label in queries:
        found = distances(query, gallery)
        nearest = min(item for item, _ in found)
        if label in have:
            mated.append((nearest, all(other == label for item, other in found if item == nearest)))
        else:
            alarms.append(nearest)
    if rate * len(alarms) < 1:
        return math.nan, math.nan, math.nan
    values = sorted({item for item, _ in mated} | set(alarms))
    thresholds = [math.nextafter(values[0], -math.inf), *((one + other) / 2 for one, other in pairwise(values))]

    def far(threshold: float) -> float:
        return sum(alarm <= threshold for alarm in alarms) / len(alarms)

    threshold = max(threshold for threshold in thresholds if far(threshold) <= rate)
    return threshold, sum(right and item <= threshold for item, right in mated) / len(mated), far(threshold)


def identify(queries: Rows, gallery: Rows) -> OpenSetIdentification:
    return open_set_identification(
        torch.tensor([row for row, _ in queries]),
        torch.tensor([label for _, label in queries]),
        torch.tensor([row for row, _ in gallery]),
        torch.tensor([label for _, label in gallery]),
        distance="euclidean",
        false_alarm_rates=RATES,
    )


@given(sets())
def test_points_are_those_of_the_exhaustive_search(sample: tuple[Rows, Rows]) -> None:
    found = identify(*sample)
    for rate in RATES:
        threshold, detected, far = oracle(*sample, rate)
        point = found.points[rate]
        assert point.threshold == pytest.approx(threshold, abs=1e-6, nan_ok=True)
        assert (point.rate, point.false_alarm_rate) == pytest.approx((detected, far), nan_ok=True)
        assert math.isnan(far) or point.false_alarm_rate <= rate


@given(sets())
def test_rank_1_is_without_a_threshold_and_above_all_points(sample: tuple[Rows, Rows]) -> None:
    queries, gallery = sample
    found, have = identify(*sample), {label for _, label in gallery}
    hits = []
    for query, label in queries:
        listed = distances(query, gallery)
        nearest = min(item for item, _ in listed)
        if label in have:
            hits.append(all(other == label for item, other in listed if item == nearest))
    assert found.rank_1 == sum(hits) / len(hits)
    known = [point.rate for point in found.points.values() if not math.isnan(point.rate)]
    assert known == sorted(known)
    assert all(rate <= found.rank_1 for rate in known)
    assert len(found.mated.labels) + len(found.non_mated.labels) == len(queries)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3), st.integers(-1, 2)), min_size=2, max_size=14))
def test_classes_are_left_out_one_by_one(rows: list[tuple[int, int, int]]) -> None:
    """Mated queries search all other rows except their sequence; non-mated queries search all other classes."""
    places, labels, sequences = zip(*rows, strict=True)
    mated, alarms = [], []
    for i, (place, label, sequence) in enumerate(rows):
        near = [
            abs(place - o) for j, (o, c, s) in enumerate(rows) if j != i and c == label and (s != sequence or s < 0)
        ]
        far = [abs(place - o) for o, c, s in rows if c != label and (s != sequence or s < 0)]
        if near:
            mated.append((min(near + far), min(near) < min(far, default=math.inf)))
        alarms.append(min((abs(place - o) for o, c, _ in rows if c != label), default=math.inf))
    assume(mated)
    x, of = torch.tensor(places)[:, None].float(), torch.tensor(labels)
    found = nearest_others(x, of, distance="euclidean", sequences=torch.tensor(sequences))
    assert found.distances.tolist() == [item for item, _ in mated]
    assert found.correct.tolist() == [right for _, right in mated]
    nearest, classes = nearest_other_classes(x, of, x, of, distance="euclidean", k=3)
    assert nearest[:, 0].tolist() == alarms
    for row, (place, label) in enumerate(zip(places, labels, strict=True)):
        others = {c: min(abs(place - o) for o, d in zip(places, labels, strict=True) if d == c) for c in {*labels}}
        del others[label]
        assert nearest[row].tolist() == (sorted(others.values()) + [math.inf] * 3)[:3]
        for distance, near in zip(nearest[row].tolist(), classes[row].tolist(), strict=True):
            assert math.isinf(distance) or others[near] == distance


def test_a_query_whose_class_is_only_itself_is_non_mated() -> None:
    rows, labels = torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([0, 0, 1])
    found = open_set_identification(
        rows, labels, rows, labels, distance="euclidean", exclude=torch.arange(3), false_alarm_rates=(0.5,)
    )
    assert found.mated.labels.tolist() == [0, 0]
    assert found.non_mated.distances.tolist() == [8.0]
    burst = torch.tensor([5, 5, -1])
    with pytest.raises(ValueError, match="of 3 queries, 0 have a class of the gallery"):
        open_set_identification(
            rows, labels, rows, labels, exclude=torch.arange(3), query_sequences=burst, gallery_sequences=burst
        )


def test_what_cannot_be_computed_is_refused() -> None:
    rows, labels = torch.eye(3), torch.arange(3)
    with pytest.raises(ValueError, match="of 3 queries, 3 have a class of the gallery"):
        open_set_identification(rows, labels, rows, labels)
    for rate in (0, 1.0, -0.1, math.nan, True):
        with pytest.raises(ValueError, match="must be above 0 and below 1"):
            open_set_identification(rows, labels, rows[:1], labels[:1], false_alarm_rates=(rate,))
    with pytest.raises(ValueError, match="query_labels"):
        open_set_identification(rows, labels[:2], rows, labels)


def many(classes: int) -> OpenSetIdentification:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2 * classes, 8, generator=generator)
    labels = torch.arange(2 * classes).repeat_interleave(6)
    rows = centres[labels] + 0.5 * torch.randn(len(labels), 8, generator=generator)
    gallery = (labels < classes) & (torch.arange(len(labels)) % 2 == 0)
    known = ~gallery
    return open_set_identification(
        rows[known], labels[known], rows[gallery], labels[gallery], false_alarm_rates=(0.1, 0.001)
    )


def test_intervals_resample_classes_and_find_the_threshold_again() -> None:
    found = many(30)
    intervals = found.intervals(resamples=500)
    assert intervals.keys() == found.values.keys() | {"threshold@far=0.1", "threshold@far=0.001"}
    for name in ("rank_1", "dir@far=0.1", "threshold@far=0.1"):
        interval = intervals[name]
        assert interval.low < interval.value < interval.high, name
    assert intervals["dir@far=0.1"].value == found.points[0.1].rate
    assert math.isnan(intervals["dir@far=0.001"].value)  # of 180 non-mated queries
    assert math.isnan(intervals["dir@far=0.001"].low)
    # Of rank 1 alone they are those of a mean over queries; of DIR they are wider than with the threshold held fixed.
    fixed = bootstrap_intervals({"dir": found.per_query["dir@far=0.1"].float()}, found.mated.labels)["dir"]
    assert intervals["dir@far=0.1"].high - intervals["dir@far=0.1"].low > fixed.high - fixed.low
    rank_1 = bootstrap_intervals({"rank_1": found.per_query["rank_1"].float()}, found.mated.labels)["rank_1"]
    assert (intervals["rank_1"].low, intervals["rank_1"].high) == pytest.approx((rank_1.low, rank_1.high), abs=0.03)


def test_a_resample_is_the_metric_of_the_classes_drawn() -> None:
    """Weights of 0, 1 and 2 give the thresholds and rates of queries that are absent, single or double."""
    found = many(4)
    weights = torch.tensor([[2.0, 0.0, 1.0, 1.0, 1.0, 2.0, 0.0, 1.0]], dtype=torch.float64)

    def repeated(part: Nearest) -> Nearest:
        return Nearest(*(item.repeat_interleave(weights[0, part.labels].long()) for item in part))

    drawn = identification_of(repeated(found.mated), repeated(found.non_mated), (0.1,))
    sample = _Sample(found.mated, found.non_mated)
    assert float(sample.rates(weights, rate=0.1)) == pytest.approx(drawn.points[0.1].rate)
    assert float(sample.rank_1(weights)) == pytest.approx(drawn.rank_1)
    threshold = float(sample.thresholds(weights, rate=0.1))
    assert _passed(found, threshold) == _passed(found, drawn.points[0.1].threshold)


def _passed(found: OpenSetIdentification, threshold: float) -> list[int]:
    return (found.non_mated.distances <= threshold).nonzero().squeeze(1).tolist()


def test_few_classes_have_no_interval() -> None:
    intervals = many(FEWEST_CLASSES - 1).intervals(resamples=10)
    assert all(math.isnan(interval.low) for interval in intervals.values())
