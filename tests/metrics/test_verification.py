"""Verification against brute force, and its invariances."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from proxemic.metrics.exact import Distance
from proxemic.metrics.neighbours import nearest_neighbours
from proxemic.metrics.verification import (
    best_threshold,
    equal_error_rate,
    pair_distances,
    roc_auc,
    tar_at_far,
    verification_accuracy,
    verification_metrics,
)

pytestmark = pytest.mark.cpu

Pairs = tuple[list[float], list[bool]]
FARS = (0.0, 0.01, 0.1, 0.25, 1 / 3, 0.5, 1.0)


@st.composite
def pairs(draw: st.DrawFn, least: int = 2) -> Pairs:
    """Pairs of both kinds, with ties among the distances more often than not."""
    number = draw(st.integers(least, 24))
    values = draw(st.sampled_from([st.integers(-2, 3).map(float), st.floats(-1e6, 1e6, width=32)]))
    distances = draw(st.lists(values, min_size=number, max_size=number))
    same = draw(st.lists(st.booleans(), min_size=number, max_size=number).filter(lambda kinds: 0 < sum(kinds) < number))
    return distances, same


def tensors(sample: Pairs) -> tuple[Tensor, Tensor]:
    return torch.tensor(sample[0], dtype=torch.float64), torch.tensor(sample[1])


def hits(distances: list[float], same: list[bool], threshold: float) -> int:
    return sum((value <= threshold) == kind for value, kind in zip(distances, same, strict=True))


def exhaustive_threshold(distances: list[float], same: list[bool]) -> float:
    values = sorted(set(distances))
    candidates = [math.nextafter(values[0], -math.inf), *((a + b) / 2 for a, b in pairwise(values)), values[-1]]
    return max(candidates, key=lambda threshold: (hits(distances, same, threshold), -threshold))


def rates(distances: list[float], same: list[bool], threshold: float) -> tuple[Fraction, Fraction]:
    """Compute TAR and FAR."""
    accepted = [kind for value, kind in zip(distances, same, strict=True) if value <= threshold]
    return Fraction(accepted.count(True), same.count(True)), Fraction(accepted.count(False), same.count(False))


def roc(sample: Pairs) -> list[tuple[Fraction, Fraction]]:
    return [rates(*sample, threshold) for threshold in (-math.inf, *sorted(set(sample[0])))]


@given(pairs(least=4), st.data())
def test_accuracy_is_that_of_the_exhaustive_search(sample: Pairs, data: st.DataObject) -> None:
    distances, same = sample
    folds = data.draw(st.lists(st.integers(-1, 2), min_size=len(same), max_size=len(same)))
    accuracies, thresholds = [], []
    for fold in sorted(set(folds)):
        train, test = ([place for place, own in enumerate(folds) if (own == fold) == side] for side in (False, True))
        assume(0 < sum(same[place] for place in train) < len(train))
        thresholds.append(exhaustive_threshold([distances[i] for i in train], [same[i] for i in train]))
        right = hits([distances[i] for i in test], [same[i] for i in test], thresholds[-1])
        accuracies.append(right / len(test))
    assume(len(accuracies) > 1)
    found = verification_accuracy(*tensors(sample), folds=torch.tensor(folds))
    assert found.accuracies == tuple(accuracies)
    assert found.thresholds == pytest.approx(thresholds, rel=1e-15, abs=1e-300)
    assert found.mean == pytest.approx(sum(accuracies) / len(accuracies))
    variance = sum((value - found.mean) ** 2 for value in accuracies) / len(accuracies)
    assert found.std == pytest.approx(math.sqrt(variance), abs=1e-12)


@given(pairs())
def test_auc_counts_the_pairs_of_pairs(sample: Pairs) -> None:
    same = [value for value, kind in zip(*sample, strict=True) if kind]
    different = [value for value, kind in zip(*sample, strict=True) if not kind]
    won = sum(Fraction(near < far) + Fraction(near == far, 2) for near in same for far in different)
    assert roc_auc(*tensors(sample)) == float(won / (len(same) * len(different)))


@given(pairs())
def test_tar_is_the_best_of_all_thresholds_that_keep_the_far(sample: Pairs) -> None:
    found = tar_at_far(*tensors(sample), FARS)
    for asked in FARS:
        assert found[asked].tar == float(max(tar for tar, far in roc(sample) if float(far) <= asked))
        measured = rates(*sample, found[asked].threshold)
        assert (found[asked].tar, found[asked].far) == tuple(map(float, measured)), "the threshold gives these rates"


@given(pairs())
def test_eer_is_where_the_polyline_crosses_the_diagonal(sample: Pairs) -> None:
    crossings = []
    for (tar, far), (next_tar, next_far) in pairwise(roc(sample)):
        # far + w (next_far - far) = 1 - tar - w (next_tar - tar)
        part = (1 - tar - far) / (next_far - far + next_tar - tar)
        if 0 <= part <= 1:
            crossings.append(far + part * (next_far - far))
    rate, threshold = equal_error_rate(*tensors(sample))
    assert {rate} == set(map(float, crossings))
    tar, far = rates(*sample, threshold)
    assert abs(far - (1 - tar)) == min(abs(far - (1 - tar)) for tar, far in roc(sample))


def test_rates_and_folds_are_those_that_are_asked_for() -> None:
    distances, same = torch.linspace(0, 1, 40), torch.arange(40) % 3 == 0
    found = verification_metrics(distances, same, folds=2, far=(0.2, 0.03))
    assert found.tar_at_far == tar_at_far(distances, same, (0.2, 0.03))
    assert [*found.tar_at_far] == [0.2, 0.03]
    assert found.accuracy == verification_accuracy(distances, same, folds=2)


def test_ten_pairs_by_hand() -> None:
    distances = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    same = torch.tensor([1, 1, 0, 1, 1, 0, 1, 0, 0, 0]) == 1
    # different pairs nearer than 1, 2, 4, 5, 7: 0, 0, 1, 1, 2 of the 25 pairs of pairs
    assert roc_auc(distances, same) == 21 / 25
    # at 5: one of five accepted wrongly, one of five refused wrongly
    assert equal_error_rate(distances, same) == (0.2, 5.5)
    assert best_threshold(distances, same) == (5.5, 0.8)
    found = tar_at_far(distances, same, (0.0, 0.2, 0.39, 0.4))
    assert [(point.tar, point.far, point.threshold) for point in found.values()] == [
        (0.4, 0.0, 2.5),
        (0.8, 0.2, 5.5),
        (0.8, 0.2, 5.5),
        (1.0, 0.4, 7.5),
    ]


def test_number_of_folds_means_consecutive_blocks_the_first_longer() -> None:
    distances, same = torch.rand(11, generator=torch.Generator().manual_seed(0)), torch.arange(11) % 2 == 0
    blocks = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3])
    assert verification_accuracy(distances, same, folds=4) == verification_accuracy(distances, same, folds=blocks)
    names = torch.tensor([-7, 5, 900, 2**40])[blocks]
    assert verification_accuracy(distances, same, folds=names) == verification_accuracy(distances, same, folds=blocks)
    assert len(verification_accuracy(distances, same).accuracies) == 10


def test_separable_pairs_are_all_right_though_a_fold_holds_the_extreme_ones() -> None:
    distances, same = torch.tensor([0.3, 0.9, 0.2, 1.0, 0.1, 1.1]), torch.arange(6) % 2 == 0
    found = verification_accuracy(distances, same, folds=3)
    assert (found.mean, found.std) == (1.0, 0.0)
    assert (roc_auc(distances, same), equal_error_rate(distances, same)[0]) == (1.0, 0.0)


def test_the_smallest_of_equally_good_thresholds_is_taken() -> None:
    assert best_threshold(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])) == (1.5, 2 / 3)
    assert best_threshold(torch.tensor([1.0, 2.0]), torch.tensor([False, True])) == (math.nextafter(1.0, 0.0), 0.5)
    assert best_threshold(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, True])) == (3.0, 2 / 3)


@pytest.mark.parametrize("value", [0.0, 1.0, math.nextafter(1.0, 2.0), -3.0, 1e300, 5e-324])
def test_adjacent_floats_are_told_apart(value: float) -> None:
    distances = torch.tensor([value, math.nextafter(value, math.inf)], dtype=torch.float64)
    threshold, accuracy = best_threshold(distances, torch.tensor([True, False]))
    assert accuracy == 1.0
    assert (distances <= threshold).tolist() == [True, False]
    assert math.isfinite(threshold)


@pytest.mark.parametrize("distances", [(-1.7e308, -1e308), (1e308, 1.7e308), (5e-324, 1.5e-323)])
def test_the_middle_of_the_largest_and_of_the_smallest_floats(distances: tuple[float, float]) -> None:
    threshold, accuracy = best_threshold(torch.tensor(distances, dtype=torch.float64), torch.tensor([True, False]))
    assert accuracy == 1.0
    assert distances[0] < threshold < distances[1]


@pytest.mark.parametrize("distances", [torch.full((6,), 0.7), torch.tensor([0.0, -0.0, 0.0, -0.0, -0.0, 0.0])])
def test_equal_distances_tell_nothing(distances: Tensor) -> None:
    same = torch.tensor([True, True, True, False, False, False])
    assert roc_auc(distances, same) == 0.5
    rate, threshold = equal_error_rate(distances, same)
    assert rate == 0.5
    assert threshold < float(distances.min()), "the smaller of two"
    assert best_threshold(distances, same)[1] == 0.5
    assert tar_at_far(distances, same, (0.999, 1.0))[0.999].tar == 0.0


def test_a_far_below_one_pair_means_no_false_accept() -> None:
    distances, same = torch.arange(8.0), torch.tensor([True, True, False, True, False, False, False, False])
    point = tar_at_far(distances, same, (1e-4,))[1e-4]
    assert (point.tar, point.far) == (2 / 3, 0.0)


@pytest.mark.parametrize("number", [30, 100, 700, 3000])
def test_a_far_that_is_met_exactly_counts_as_met(number: int) -> None:
    distances, same = torch.arange(number + 1.0), torch.arange(number + 1) == number
    asked = [accepted / number for accepted in range(number)]
    assert [point.far for point in tar_at_far(distances, same, asked).values()] == asked


def sample(rows: int, dim: int, seed: int) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [1, 3, 128, 512])
def test_distances_equal_the_oracle_and_the_neighbours(dim: int) -> None:
    first, second = sample(31, dim, 0), sample(31, dim, 1)
    left, right = first.double(), second.double()
    euclidean = (left - right).square().sum(1).sqrt()
    cosine = 1 - (left * right).sum(1) / (left.norm(dim=1) * right.norm(dim=1))
    distances: tuple[tuple[Distance, Tensor], ...] = (("euclidean", euclidean), ("cosine", cosine))
    for name, expected in distances:
        found = pair_distances(first, second, distance=name)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        for row in range(31):
            nearest, _ = nearest_neighbours(first[row, None], second[row, None], k=1, distance=name)
            torch.testing.assert_close(found[row].float(), nearest[0, 0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dim", [2, 127, 512])
def test_equal_pairs_have_the_very_same_distance_anywhere(distance: Distance, dim: int) -> None:
    first, second = sample(7, dim, 0), sample(7, dim, 1)
    alone = torch.cat([pair_distances(first[i : i + 1], second[i : i + 1], distance=distance) for i in range(7)])
    order = torch.randperm(7 * 53, generator=torch.Generator().manual_seed(0)) % 7
    assert torch.equal(pair_distances(first[order], second[order], distance=distance), alone[order])
    assert torch.equal(pair_distances(second, first, distance=distance), alone)
    assert not pair_distances(first, 1.0 * first, distance=distance).any(), "equal rows lie exactly at 0"


def test_cosine_of_zero_opposite_tiny_and_huge_rows() -> None:
    first = torch.tensor([[0.0, 0.0], [0.3, 0.7], [1e-30, 0.0], [3e38, 3e38], [0.0, 0.0]])
    second = torch.tensor([[1.0, 2.0], [-0.3, -0.7], [2e-30, 0.0], [-3e38, 3e38], [0.0, 0.0]])
    assert pair_distances(first, second).tolist() == [1.0, 2.0, 0.0, 1.0, 1.0]


def test_cosine_of_parallel_rows_stays_in_its_range() -> None:
    rows = sample(500, 16, 0)
    assert 0 <= float(pair_distances(rows, 3.7 * rows).min()) <= float(pair_distances(rows, 3.7 * rows).max()) < 1e-6
    assert 2 - 1e-6 < float(pair_distances(rows, -3.7 * rows).min()) <= 2
    assert float(pair_distances(rows, -3.7 * rows).max()) <= 2


TWO = torch.tensor([True, False])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pair_distances(sample(3, 2, 0), sample(1, 2, 0)), r"second has shape \(1, 2\) but first \(3, 2\)"),
        (lambda: pair_distances(sample(3, 2, 0) / 0, sample(3, 2, 0)), "first has NaN or infinite values in 3 of 3"),
        (lambda: roc_auc(torch.ones(3), TWO), r"same has shape \(2,\) and distances \(3,\)"),
        (lambda: roc_auc(torch.ones(2), TWO.long()), r"same has torch.int64 but must be bool: pass `same == 1`"),
        (lambda: roc_auc(torch.ones(2), ~TWO & TWO), "same is true for 0 of 2 pairs but both kinds are needed"),
        (lambda: tar_at_far(torch.ones(2), TWO, (0.1, 1.5)), r"far holds 1.5 but each must be a rate in \[0, 1\]"),
        (lambda: verification_accuracy(torch.ones(2), TWO), "folds is 10 but must be an integer from 2 to 2"),
        (lambda: verification_accuracy(torch.ones(2), TWO, folds=2), "1 pairs outside fold 0, all of one kind"),
        (lambda: verification_accuracy(torch.ones(2), TWO, folds=torch.arange(3)), r"folds .*\(3,\) .*\[2\]"),
        (lambda: verification_accuracy(torch.ones(2), TWO, folds=torch.tensor([4, 4])), "all pairs into one fold"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_evaluated_is_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
