"""Scores of two partitions against scikit-learn, sums of fractions, and repeated rows."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.metrics.contingency import EntropyMean, contingency, weighted_ami, weighted_nmi

pytestmark = pytest.mark.cpu

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def everyone(table: Tensor) -> Tensor:
    return torch.ones(1, table.shape[0], dtype=torch.float64)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows = draw(st.integers(1, 40))
    both = [draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows)) for _ in range(2)]
    return torch.tensor(both[0]), torch.tensor(both[1])


@given(partitions(), st.sampled_from(["arithmetic", "geometric"]))
@settings(deadline=None)
def test_nmi_equals_scikit_learn(data: tuple[Tensor, Tensor], average: EntropyMean) -> None:
    table = contingency(*data)
    expected = sklearn_metrics.normalized_mutual_info_score(data[0], data[1], average_method=average)
    assert float(weighted_nmi(table, everyone(table), average=average)) == pytest.approx(expected, abs=1e-12)


@given(partitions())
@settings(deadline=None)
def test_ami_equals_the_definition(data: tuple[Tensor, Tensor]) -> None:
    table = contingency(*data)
    dense = table.to_dense().long().tolist()
    rows, sizes, others = (
        len(data[0]),
        [sum(row) for row in dense],
        [sum(column) for column in zip(*dense, strict=True)],
    )
    if sorted(map(max, dense)) == sorted(sizes) == sorted(others):
        assert float(weighted_ami(table, everyone(table))) == 1.0
        return

    def information(both: int, a: int, b: int) -> float:
        return both / rows * math.log(rows * both / (a * b)) if both else 0.0

    mutual = sum(
        information(n, a, b) for row, a in zip(dense, sizes, strict=True) for n, b in zip(row, others, strict=True)
    )
    chance = sum(
        float(Fraction(math.comb(a, n) * math.comb(rows - a, b - n), math.comb(rows, b))) * information(n, a, b)
        for a in sizes
        for b in others
        for n in range(max(1, a + b - rows), min(a, b) + 1)
    )
    mean = sum(-n / rows * math.log(n / rows) for n in sizes + others) / 2
    expected = (mutual - chance) / (mean - chance)
    assert float(weighted_ami(table, everyone(table))) == pytest.approx(expected, abs=1e-10)


def test_ami_equals_scikit_learn_on_many_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(40, (3000,), generator=generator) ** 2 // 40
    clusters = torch.where(torch.rand(3000, generator=generator) < 0.5, labels, labels.roll(7))
    table = contingency(labels, clusters)
    expected = sklearn_metrics.adjusted_mutual_info_score(labels, clusters)
    assert float(weighted_ami(table, everyone(table))) == pytest.approx(expected, abs=1e-9)


def test_a_weight_repeats_the_rows_of_its_class() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, clusters = torch.randint(6, (2, 60), generator=generator)
    table = contingency(labels, clusters)
    weights = torch.tensor([[2, 0, 1, 3, 0, 1], [0, 0, 5, 0, 1, 0], [0, 0, 0, 1, 0, 0]], dtype=torch.float64)
    scores = [
        weighted_nmi(table, weights),
        weighted_nmi(table, weights, average="geometric"),
        weighted_ami(table, weights),
    ]
    for row, *found in zip(weights, *scores, strict=True):
        repeated = contingency(*(value.repeat_interleave(row.long()[labels]) for value in (labels, clusters)))
        once = everyone(repeated)
        expected = [
            float(weighted_nmi(repeated, once)),
            float(weighted_nmi(repeated, once, average="geometric")),
            float(weighted_ami(repeated, once)),
        ]
        assert [float(item) for item in found] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "clusters", "nmi", "ami"),
    [
        ([5, 5, 5], [2, 2, 2], 1, 1),  # one class, one cluster: the same partition
        ([5, 5, 5], [0, 1, 1], 0, 0),  # one class in several
        ([0, 1, 2], [4, 4, 4], 0, 0),  # several in one
        ([0, 1, 2], [4, 3, 9], 1, 1),  # each row alone in both
        ([0, 0, 1, 1], [0, 1, 0, 1], 0, -0.5),
        ([3], [8], 1, 1),
    ],
)
def test_extremes(labels: list[int], clusters: list[int], nmi: float, ami: float) -> None:
    table = contingency(torch.tensor(labels), torch.tensor(clusters))
    assert float(weighted_nmi(table, everyone(table))) == nmi
    assert float(weighted_nmi(table, everyone(table), average="geometric")) == nmi
    assert float(weighted_ami(table, everyone(table))) == pytest.approx(ami, abs=1e-12)
