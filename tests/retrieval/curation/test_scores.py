"""Scores of wrong labels and of outliers: against their definitions, and where there is little to go by."""

import math
import statistics

import pytest
import torch
from torch import Tensor

from proxemic.metrics import Distance
from proxemic.retrieval.curation import outlier_scores, wrong_label_scores


def by_definition(x: Tensor, labels: list[int], distance: str, row: int) -> tuple[float, int]:
    """In float64, with all rows; classes of three rows or more."""
    points = x.double().tolist()

    def apart(one: list[float], other: list[float]) -> float:
        if distance == "euclidean":
            return math.dist(one, other)
        norms = math.hypot(*one) * math.hypot(*other)
        return 1 - sum(a * b for a, b in zip(one, other, strict=True)) / norms

    means = {}
    for label in set(labels) - {-1}:
        members = [place for place, item in enumerate(labels) if item == label and place != row]
        nearest = sorted(apart(points[row], points[place]) for place in members)[:3]
        means[label] = sum(nearest) / len(nearest)
    own = means.pop(labels[row])
    other = min(means, key=lambda label: means[label])
    return own / (own + means[other]), other


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_equals_its_definition(distance: Distance) -> None:
    labels = (torch.arange(40) % 5).tolist()
    labels[7], labels[23] = -1, 2
    x = torch.randn(40, 6) + torch.randn(5, 6)[torch.arange(40) % 5]
    scores, suggested = wrong_label_scores(x, torch.tensor(labels), distance=distance)
    # With 39 others of which 30 are searched, the third of the nearest other class is always among them here.
    for row in range(40):
        if row == 7:
            assert scores[row].isnan()
            assert suggested[row] == -1
        else:
            score, other = by_definition(x, labels, distance, row)
            assert float(scores[row]) == pytest.approx(score, abs=1e-5)
            assert int(suggested[row]) == other


def test_labels_that_were_changed_come_first_also_where_the_embedding_has_learnt_them() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    true = torch.arange(600) % 30
    given = true.clone()
    given[::19] = (true[::19] + 1 + torch.arange(32) % 29) % 30
    centres = torch.randn(30, 16)
    # A wrong picture has gone half of the way to its wrong class.
    x = centres[true] + 0.5 * (given != true)[:, None] * (centres[given] - centres[true]) + 0.2 * torch.randn(600, 16)
    scores, suggested = wrong_label_scores(x, given)
    assert metrics.average_precision_score(given != true, scores) > 0.95
    wrong = (given != true) & (scores > 0.5)
    assert torch.equal(suggested[wrong], true[wrong])
    order = torch.randperm(600)
    again = wrong_label_scores(x[order], given[order] + 5)
    torch.testing.assert_close(again.scores, scores[order])
    assert torch.equal(again.suggested, suggested[order] + 5)


def test_what_cannot_be_judged_has_no_score() -> None:
    x = torch.tensor([[0.0], [0.0], [1.0], [5.0]])
    scores, suggested = wrong_label_scores(x, torch.tensor([0, 0, 0, 1]), distance="euclidean")
    assert scores.isnan().tolist() == [False, False, False, True]  # alone in its class
    assert suggested.tolist() == [1, 1, 1, -1]
    one_class = wrong_label_scores(x, torch.zeros(4, dtype=torch.int64), distance="euclidean")
    assert one_class.scores.tolist() == [0.0] * 4
    assert one_class.suggested.tolist() == [-1] * 4
    for labels in ([-1] * 4, [-1, -1, -1, 3], [0, 1, 2, 3]):
        assert wrong_label_scores(x, torch.tensor(labels)).scores.isnan().all()
    equal = wrong_label_scores(torch.ones(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert equal.scores.tolist() == [0.5] * 6


def test_refuses_labels_of_another_number() -> None:
    with pytest.raises(ValueError, match=r"labels has shape \(3,\) but must be \[4\]"):
        wrong_label_scores(torch.ones(4, 2), torch.zeros(3, dtype=torch.int64))


def test_outlier_scores_equal_their_definition() -> None:
    x = torch.randn(50, 3)
    x[11] += 6.0
    points = x.double().tolist()
    means = [
        statistics.fmean(sorted(math.dist(one, other) for other in points if other is not one)[:5]) for one in points
    ]
    middle = statistics.median(means)
    spread = statistics.median(abs(mean - middle) for mean in means)
    expected = [0.6745 * (mean - middle) / spread for mean in means]
    found = outlier_scores(x, distance="euclidean")
    assert found.tolist() == pytest.approx(expected, abs=1e-3)
    assert found.argmax() == 11
    assert found[11] > 3.5


def test_where_more_than_half_are_alike_the_mean_deviation_counts() -> None:
    x = torch.cat([torch.zeros(20, 2), torch.tensor([[10.0, 0.0]])])
    found = outlier_scores(x, distance="euclidean")
    assert found[:20].tolist() == [0.0] * 20
    assert float(found[20]) == pytest.approx(10 / (1.2533 * 10 / 21))
    assert not outlier_scores(torch.ones(20, 2)).any()
    assert outlier_scores(torch.rand(2, 2)).tolist() == [0.0, 0.0]
    assert outlier_scores(torch.empty(0, 2)).tolist() == []


def test_a_copy_does_not_hide_an_outlier() -> None:
    x = torch.cat([torch.randn(30, 2), torch.full((6, 2), 40.0)])
    assert (outlier_scores(x, distance="euclidean")[30:] < 3.5).all()
    copies = torch.cat([torch.full((30,), -1), torch.zeros(6, dtype=torch.int64)])
    assert (outlier_scores(x, distance="euclidean", copies=copies)[30:] > 3.5).all()
