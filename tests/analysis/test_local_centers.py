"""Mutual information of proxies and properties, against plain counting."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxemic.analysis.local_centers import conditional_information, nearest_own_proxy, shuffled_information
from proxemic.losses import EuclideanSoftmaxLoss, SoftTripleLoss

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=40)


def counted(rows: list[tuple[int, int, int]]) -> float:
    """Sum over classes of p(c) · I(value; proxy) within the class, from counts."""
    total = 0.0
    for label in {row[0] for row in rows}:
        mine = [row[1:] for row in rows if row[0] == label]
        n, pairs = len(mine), Counter(mine)
        values, proxies = Counter(value for value, _ in mine), Counter(proxy for _, proxy in mine)
        information = sum(
            count / n * math.log2(count * n / (values[value] * proxies[proxy]))
            for (value, proxy), count in pairs.items()
        )
        total += n / len(rows) * information
    return total


@given(rows=ROWS)
def test_the_information_is_that_of_the_counts(rows: list[tuple[int, int, int]]) -> None:
    classes, values, proxies = torch.tensor(rows).unbind(1)
    assert conditional_information(classes, values, proxies) == pytest.approx(counted(rows), abs=1e-9)


def test_a_proxy_that_knows_and_one_that_does_not() -> None:
    classes = torch.arange(50).repeat_interleave(8)
    values = torch.arange(4).repeat(100)
    knows = shuffled_information(classes, values, values // 2, shuffles=50)
    assert knows.information == pytest.approx(1)
    assert knows.most == pytest.approx(1)
    assert knows.chance_range[1] < 0.5
    guesses = torch.randint(2, (400,), generator=torch.Generator().manual_seed(0))
    blind = shuffled_information(classes, values, guesses, shuffles=200)
    assert blind.chance_range[0] <= blind.information <= blind.chance_range[1]


def test_whole_units_are_shuffled_where_they_are_given() -> None:
    # Three draws of each picture are always alike: shuffled row by row that alone would look like knowledge.
    classes = torch.arange(60).repeat_interleave(12)
    pictures = torch.arange(4).repeat_interleave(3).repeat(60)
    generator = torch.Generator().manual_seed(3)
    proxies = torch.randint(2, (60, 4), generator=generator).repeat_interleave(3, 1).flatten()
    values = pictures % 2
    found = shuffled_information(classes, values, proxies, units=pictures)
    assert found.chance_range[0] <= found.information <= found.chance_range[1]
    assert shuffled_information(classes, values, proxies).chance_range[1] < found.information
    with pytest.raises(ValueError, match="two values"):
        shuffled_information(classes, torch.arange(len(classes)), proxies, units=pictures)


def test_nearest_is_by_the_losss_own_similarity() -> None:
    proxies = torch.tensor([[[3.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    embeddings, labels = torch.tensor([[0.6, 0.1], [0.2, 0.9]]), torch.tensor([0, 1])
    expected = {SoftTripleLoss: [0, 1], EuclideanSoftmaxLoss: [1, 1]}
    for kind, nearest in expected.items():
        loss = kind(2, 2, proxies_per_class=2)
        loss.proxies.data.copy_(proxies)
        assert nearest_own_proxy(loss, embeddings, labels).tolist() == nearest
