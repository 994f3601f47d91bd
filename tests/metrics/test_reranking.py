"""Re-ranking and query expansion against loops written from the papers' formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from proxemic.metrics import expand_queries, k_reciprocal_distances, nearest_neighbours, retrieval_metrics

pytestmark = pytest.mark.cpu

Row = list[float]


def rows(count: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, dim, generator=generator)
    return centres[torch.arange(count) % 5] + torch.randn(count, dim, generator=generator)


def unit(row: Row) -> Row:
    norm = math.sqrt(sum(value * value for value in row))
    return [value / norm for value in row]


def reranked(queries: list[Row], gallery: list[Row], k1: int, k2: int, weight: float) -> list[Row]:
    """Compute equations 3 to 12 of Zhong et al. with sets and loops; rows must be scaled for the distance."""
    everything = [*queries, *gallery]
    places = range(len(everything))
    d = [[sum((a - b) ** 2 for a, b in zip(p, g, strict=True)) for g in everything] for p in everything]
    d = [[value / max(row) for value in row] for row in d]
    order = [sorted(places, key=row.__getitem__) for row in d]

    def reciprocal(p: int, k: int) -> set[int]:
        return {g for g in order[p][: k + 1] if p in order[g][: k + 1]} | {p}

    described = []
    for p in places:
        neighbours = reciprocal(p, k1)
        expanded = set(neighbours)
        for q in neighbours:
            near = reciprocal(q, max(1, round(k1 / 2)))
            if 3 * len(near & neighbours) >= 2 * len(near):
                expanded |= near
        powers = [math.exp(-d[p][g]) if g in expanded else 0.0 for g in places]
        described.append([power / sum(powers) for power in powers])
    described = [[sum(described[q][g] for q in order[p][:k2]) / k2 for g in places] for p in places]

    def jaccard(p: int, g: int) -> float:
        both = [(described[p][j], described[g][j]) for j in places]
        return 1 - sum(map(min, both)) / sum(map(max, both))

    first = len(queries)
    return [[(1 - weight) * jaccard(p, g) + weight * d[p][g] for g in places[first:]] for p in places[:first]]


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize(("k1", "k2", "weight"), [(5, 3, 0.3), (20, 6, 0.3), (1, 1, 0.0), (7, 2, 1.0)])
def test_reranking_equals_the_formulas(distance: Any, k1: int, k2: int, weight: float) -> None:
    queries, gallery = rows(4, 6, seed=1).double(), rows(31, 6, seed=2).double()
    asked, searched = (
        [unit(row) if distance == "cosine" else row for row in value.tolist()] for value in (queries, gallery)
    )
    expected = torch.tensor(reranked(asked, searched, k1, k2, weight), dtype=torch.float64)
    found = k_reciprocal_distances(queries, gallery, k1=k1, k2=k2, original_weight=weight, distance=distance)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=0)


def test_the_original_distance_alone_keeps_the_order() -> None:
    queries, gallery = rows(5, 8, seed=3), rows(40, 8, seed=4)
    _, before = nearest_neighbours(queries, gallery, k=10)
    assert torch.equal(k_reciprocal_distances(queries, gallery, original_weight=1).argsort(1)[:, :10], before)


def test_reranking_finds_more_of_the_own_class() -> None:
    gallery, labels, everything = rows(200, 8, seed=5), torch.arange(200) % 5, torch.arange(200)
    _, before = nearest_neighbours(gallery, gallery, k=30, exclude=everything)
    distances = k_reciprocal_distances(gallery, gallery).scatter(1, everything[:, None], torch.inf)
    precisions = [(labels[hits] == labels[:, None]).double().mean() for hits in (before, distances.argsort(1)[:, :30])]
    assert precisions[1] > precisions[0]


def test_metrics_are_those_of_the_reranked_list() -> None:
    everything, labels, relevant = rows(160, 6, seed=9).double(), torch.arange(160) % 5, 31
    near = everything / everything.norm(dim=1, keepdim=True)
    found = retrieval_metrics(everything, labels, recall_at=(1, 3), map=True, mrr=True, rerank=True, chunk_size=50)
    beyond = 0
    for query in range(0, 160, 20):
        order = sorted(set(range(160)) - {query}, key=lambda row: float(-near[query] @ near[row]))
        first, others = order[:100], order[100:]
        listed = [near[row].tolist() for row in first]
        again = reranked([near[query].tolist()], listed, 20, 6, 0.3)[0]
        ranking = [row for _, row in sorted(zip(again, first, strict=True), key=lambda pair: pair[0])] + others
        hits = [int(labels[row] == labels[query]) for row in ranking]
        beyond += sum(hits[100:])
        precisions = [hit * sum(hits[: place + 1]) / (place + 1) for place, hit in enumerate(hits)]
        expected = {
            "recall@1": hits[0], "recall@3": max(hits[:3]), "map@r": sum(precisions[:relevant]) / relevant,
            "map": sum(precisions) / relevant, "mrr": 1 / (hits.index(1) + 1),
        }  # fmt: skip
        values = {name: found.per_query[name][query].item() for name in expected}
        assert values == pytest.approx(expected, abs=1e-6)
    assert beyond, "of some queries relevant rows lie behind those that are ranked again"


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_query_expansion_equals_the_formula(alpha: float) -> None:
    queries, gallery = rows(6, 4, seed=7), rows(30, 4, seed=8)
    found = expand_queries(queries, gallery, k=5, alpha=alpha)
    listed = [unit(row) for row in gallery.double().tolist()]
    for row, query in zip(found, queries.double().tolist(), strict=True):
        query = unit(query)
        cosines = [sum(a * b for a, b in zip(query, other, strict=True)) for other in listed]
        nearest = sorted(range(len(listed)), key=lambda place: -cosines[place])[:5]
        summed = list(query)
        for place in nearest:
            weight = max(cosines[place], 0.0) ** alpha
            summed = [value + weight * other for value, other in zip(summed, listed[place], strict=True)]
        torch.testing.assert_close(row.double(), torch.tensor(unit(summed), dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: k_reciprocal_distances(x, x, k1=0), "k1 is 0, but must be a whole number, at least 1"),
        (lambda x: k_reciprocal_distances(x, x, k2=-1), "k2 is -1"),
        (
            lambda x: k_reciprocal_distances(x, x, original_weight=2.0),
            "original_weight is 2.0, but must be from 0 to 1",
        ),
        (lambda x: expand_queries(x, x, k=4), "k is 4, but the gallery has 3"),
        (lambda x: expand_queries(x, x, k=1, alpha=-1.0), "alpha is -1.0, but must be 0 or more"),
    ],
)
def test_arguments_out_of_range_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.eye(3))
