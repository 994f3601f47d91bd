"""Chance levels: against the mean over all rankings of small galleries, and random embeddings of a large one."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from proxemic.metrics import chance, ranking, retrieval_metrics
from proxemic.metrics.confidence import AveragedOver

pytestmark = pytest.mark.cpu

AT_K = ("recall_at_k", "precision_at_k", "map_at_k", "ndcg_at_k")
DIVIDED = {f"map_at_k over {divisor}": divisor for divisor in ("k", "hits", "R")}


def all_rankings(relevant: int, gallery: int) -> Tensor:
    """One row for each way to place the relevant items."""
    rows = torch.zeros(len(list(combinations(range(gallery), relevant))), gallery, dtype=torch.int64)
    for row, places in zip(rows, combinations(range(gallery), relevant), strict=True):
        row[list(places)] = 1
    return rows


@pytest.mark.parametrize("name", [*AT_K, *DIVIDED, "r_precision", "map_at_r", "mrr"])
def test_equals_the_mean_over_all_rankings(name: str) -> None:
    more = {"divisor": DIVIDED[name]} if name in DIVIDED else {}
    name, _, _ = name.partition(" ")
    for gallery in range(1, 8):
        for relevant in range(1, gallery + 1):
            rankings = all_rankings(relevant, gallery)
            counts = torch.full((len(rankings),), relevant)
            for k in range(1, gallery + 3) if name in AT_K else (None,):
                last = () if k is None else (k,)
                expected = getattr(ranking, name)(rankings, counts, *last, **more).mean()
                sizes = torch.tensor([relevant, 0]), torch.tensor([gallery, gallery])
                found = getattr(chance, name)(*sizes, *last, **more)
                assert found[0].item() == pytest.approx(expected.item(), rel=1e-12), (relevant, gallery, k)
                assert found[1].isnan()
            sizes = torch.tensor([relevant]), torch.tensor([gallery])
            whole = ranking.map_at_k(rankings, counts, gallery, divisor="R").mean().item()
            assert chance.average_precision(*sizes)[0].item() == pytest.approx(whole, rel=1e-12)


def test_large_galleries_keep_their_digits() -> None:
    relevant, gallery = torch.tensor([5, 50_000]), torch.tensor([60_000, 60_000])
    found = chance.recall_at_k(relevant, gallery, 10)
    none = [1.0, 1.0]
    for query, (some, size) in enumerate(zip(relevant.tolist(), gallery.tolist(), strict=True)):
        for place in range(10):
            none[query] *= (size - some - place) / (size - place)
    assert found.tolist() == pytest.approx([1 - item for item in none], rel=1e-6)


@pytest.mark.parametrize("average", ["queries", "classes"])
def test_random_embeddings_reach_the_level_of_chance(average: AveragedOver) -> None:
    labels = torch.arange(400) % 9 * (torch.arange(400) % 2)  # 0 for half of them: classes of different sizes
    drawn = [
        retrieval_metrics(
            torch.randn(400, 32, generator=torch.Generator().manual_seed(seed)), labels, recall_at=(1, 5),
            precision_at=(7,), map_at=(7,), map_divisors=("min", "k", "hits", "R"), ndcg_at=(7,), map=True, mrr=True,
            nmi=seed == 0, average=average,
        )
        for seed in range(12)
    ]  # fmt: skip
    level = drawn[0].chance
    assert level.keys() == drawn[0].keys()
    for name in drawn[1]:
        assert sum(found[name] for found in drawn) / len(drawn) == pytest.approx(level[name], abs=0.02), name
    assert level["recall@5"] > 2 * level["recall@1"] * 0.9
    assert level["ami"] == 0
    assert abs(drawn[0]["nmi"] - level["nmi"]) < 0.05 < level["nmi"] + 0.05


def test_the_query_itself_and_queries_without_a_relevant_item_do_not_count() -> None:
    points, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2])
    found = retrieval_metrics(points, labels, recall_at=(1, 4))
    assert found.chance == pytest.approx({"recall@1": 1 / 4, "recall@4": 1.0, "map@r": 1 / 4, "r_precision": 1 / 4})
    gallery = retrieval_metrics(points, labels, points, labels, recall_at=(1,))
    assert gallery.chance["recall@1"] == pytest.approx((4 * 2 / 5 + 1 / 5) / 5)
    overlap = retrieval_metrics(points, labels, points, labels, recall_at=(1,), exclude=torch.arange(5))
    assert overlap.chance["recall@1"] == pytest.approx(1 / 4)
