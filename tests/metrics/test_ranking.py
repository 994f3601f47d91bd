"""Ranking metrics against plain-Python formulas, the published table and their bounds."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.retrieval import retrieval_average_precision

from proxemic.metrics.ranking import (
    Divisor,
    map_at_k,
    map_at_r,
    mrr,
    ndcg_at_k,
    precision_at_k,
    r_precision,
    recall_at_k,
)

DIVIDED = {divisor: partial(map_at_k, divisor=divisor) for divisor in ("k", "hits", "R")}
WHOLE = (r_precision, map_at_r, mrr)
AT_K = (recall_at_k, precision_at_k, map_at_k, ndcg_at_k)


def plain(name: str, hits: list[int], r: int, k: int) -> float:
    """Compute one metric of one ranking from its formula, in Python floats."""
    hits = hits + [0] * max(0, max(k, r) - len(hits))
    precision = [sum(hits[: i + 1]) / (i + 1) for i in range(len(hits))]

    def map_over(divisor: int) -> float:
        return sum(h * p for h, p in zip(hits[:k], precision[:k], strict=True)) / max(divisor, 1)

    def dcg(relevance: list[int]) -> float:
        return sum((2**rel - 1) / math.log2(i + 2) for i, rel in enumerate(relevance[:k]))

    return {
        "recall_at_k": lambda: float(any(hits[:k])),
        "precision_at_k": lambda: sum(hits[:k]) / k,
        "r_precision": lambda: sum(hits[:r]) / r,
        "map_at_r": lambda: sum(h * p for h, p in zip(hits[:r], precision[:r], strict=True)) / r,
        "map_at_k": lambda: map_over(min(k, r)),
        "k": lambda: map_over(k),
        "hits": lambda: map_over(sum(hits[:k])),
        "R": lambda: map_over(r),
        "mrr": lambda: 1 / (hits.index(1) + 1) if any(hits) else 0.0,
        "ndcg_at_k": lambda: dcg(hits) / dcg([1] * r),
    }[name]()


rankings = st.lists(st.integers(0, 1), min_size=1, max_size=12).flatmap(
    lambda hits: st.tuples(st.just(hits), st.integers(max(1, sum(hits)), 15), st.integers(1, 15))
)


@given(rankings)
def test_equal_the_formulas_and_stay_in_bounds(ranking: tuple[list[int], int, int]) -> None:
    hits, r, k = ranking
    relevance, num_relevant = torch.tensor([hits]), torch.tensor([r])
    values = {value.__name__: value(relevance, num_relevant, k).item() for value in AT_K}
    values |= {name: value(relevance, num_relevant, k).item() for name, value in DIVIDED.items()}
    values |= {value.__name__: value(relevance, num_relevant).item() for value in WHOLE}
    assert values == {name: pytest.approx(plain(name, hits, r, k), abs=1e-12) for name in values}
    assert all(0 <= value <= 1 for value in values.values())
    assert values["map_at_r"] <= values["r_precision"]
    assert values["k"] <= values["precision_at_k"]
    assert max(values["k"], values["R"]) <= values["map_at_k"] <= values["hits"]


def test_table_3_of_the_multi_proxy_anchor_paper() -> None:
    relevance = torch.zeros(5, 10, dtype=torch.int64)
    for row, places in enumerate([(0,), (0, 9), (0, 2), (0, 2, 6, 9), (0, 1, 2, 3)]):
        relevance[row, list(places)] = 1
    four = torch.full((5,), 4)
    table = [
        recall_at_k(relevance, four, 10),
        precision_at_k(relevance, four, 10),
        map_at_r(relevance, four),
        map_at_k(relevance, four, 10, divisor="k"),
        ndcg_at_k(relevance, four, 10),
    ]
    assert [[round(100 * value, 1) for value in row] for row in torch.stack(table, 1).tolist()] == [
        [100.0, 10.0, 25.0, 10.0, 39.0],
        [100.0, 20.0, 25.0, 12.0, 50.3],
        [100.0, 20.0, 41.7, 16.7, 58.6],
        [100.0, 40.0, 41.7, 25.0, 82.9],
        [100.0, 40.0, 100.0, 40.0, 100.0],
    ]


@pytest.mark.parametrize("k", [1, 3, 10, 1000])
def test_a_perfect_list_has_map_and_ndcg_of_exactly_one(k: int) -> None:
    relevance = (torch.arange(100) < torch.arange(1, 101)[:, None]).int()
    for metric in (ndcg_at_k, map_at_k):
        assert (metric(relevance, torch.arange(1, 101), k) == 1).all()


def test_the_values_of_other_libraries_can_be_reproduced() -> None:
    """Hits at places 1, 4 and 6 of five relevant items, by hand and by torchmetrics."""
    ranking, five = torch.tensor([[1, 0, 0, 1, 0, 1]]), torch.tensor([5])
    total = 1 + 2 / 4
    worth: dict[Divisor, float] = {"min": total / 5, "k": total / 5, "hits": total / 2, "R": total / 5}
    assert {value: map_at_k(ranking, five, 5, divisor=value).item() for value in worth} == pytest.approx(worth)
    assert map_at_k(ranking, five, 4).item() == pytest.approx(total / 4)
    theirs = retrieval_average_precision(torch.arange(7.0, 1.0, -1.0), ranking[0].bool(), top_k=5)
    assert theirs.item() == pytest.approx(worth["hits"])


def test_no_relevant_items_is_not_a_number() -> None:
    relevance, num_relevant = torch.tensor([[False, False], [True, False]]), torch.tensor([0, 1])
    values = [item(relevance, num_relevant, 2) for item in AT_K]
    values += [item(relevance, num_relevant, 2) for item in DIVIDED.values()]
    values += [item(relevance, num_relevant) for item in WHOLE]
    for value in values:
        assert value.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("relevance", "num_relevant", "k", "message"),
    [
        ([[1, 0]], [1], 0, "k is 0"),
        ([[2, 0]], [2], 1, "other than 0 and 1"),
        ([[1, 1]], [1], 1, "num_relevant is below"),
        ([[]], [1], 1, "no neighbours"),
    ],
)
def test_refuses(relevance: list[list[int]], num_relevant: list[int], k: int, message: str) -> None:
    for metric in AT_K:
        with pytest.raises(ValueError, match=message):
            metric(torch.tensor(relevance, dtype=torch.int64), torch.tensor(num_relevant), k)
