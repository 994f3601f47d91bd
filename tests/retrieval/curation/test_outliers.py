"""Scores of outliers: against the definition, and where all are alike."""

import math
import statistics

import pytest
import torch

from proxemic.retrieval.curation import outlier_scores


def test_equals_its_definition() -> None:
    x = torch.randn(50, 3)
    x[11] += 6.0
    points = x.double().tolist()
    means = [
        statistics.fmean(sorted(math.dist(one, other) for other in points if other is not one)[:5]) for one in points
    ]
    middle = statistics.median(means)
    spread = statistics.median(abs(each - middle) for each in means)
    expected = [0.6745 * (each - middle) / spread for each in means]
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
