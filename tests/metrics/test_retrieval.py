"""Retrieval metrics against an oracle written from the definitions, and awkward cases."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.metrics import RetrievalMetrics, retrieval_metrics
from proxemic.metrics.exact import Distance

pytestmark = pytest.mark.cpu


def oracle(
    queries: Tensor, query_labels: Tensor, gallery: Tensor, gallery_labels: Tensor, own: bool
) -> dict[str, float]:
    """Evaluate one query at a time by Euclidean distance, irrelevant items first on ties."""
    values: dict[str, list[float]] = {}
    for i, query in enumerate(queries.tolist()):
        ranking = sorted(
            (math.dist(query, other), int(query_labels[i]) == int(gallery_labels[j]))
            for j, other in enumerate(gallery.tolist())
            if not (own and i == j)
        )
        hits = [int(relevant) for _, relevant in ranking]
        if not (r := sum(hits)):
            continue
        hits += [0] * 20
        precision = [sum(hits[: n + 1]) / (n + 1) for n in range(len(hits))]
        found = {f"recall@{k}": float(any(hits[:k])) for k in (1, 2, 15)}
        found |= {f"precision@{k}": precision[k - 1] for k in (3, 15)}
        for k in (3, 15):
            total = sum(hits[n] * precision[n] for n in range(k))
            found |= {f"map@{k}": total / min(k, r), f"map_over_hits@{k}": total / max(sum(hits[:k]), 1)}
        found["map"] = sum(hit * item for hit, item in zip(hits, precision, strict=True)) / r
        found["mrr"] = 1 / (hits.index(1) + 1)
        ideal = sum(1 / math.log2(n + 2) for n in range(min(4, r)))
        found["ndcg@4"] = sum(hits[n] / math.log2(n + 2) for n in range(4)) / ideal
        found["map@r"] = sum(hits[n] * precision[n] for n in range(r)) / r
        found["r_precision"] = sum(hits[:r]) / r
        for name, value in found.items():
            values.setdefault(name, []).append(value)
    return {name: sum(value) / len(value) for name, value in values.items()}


def evaluate(*sets: Tensor, distance: Distance = "euclidean", chunk_size: int | None = None) -> RetrievalMetrics:
    at = {"recall_at": (1, 2, 15), "precision_at": (3, 15), "map_at": (3, 15), "ndcg_at": (4,)}
    more = {"map_divisors": ("min", "hits"), "map": True, "mrr": True}
    return retrieval_metrics(*sets, distance=distance, chunk_size=chunk_size, **at, **more)


@st.composite
def labelled_points(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Points of a small lattice, so that equal distances and equal rows are common, and at least one pair."""
    rows = draw(st.integers(2, 12))
    points = draw(st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=rows, max_size=rows))
    labels = draw(st.lists(st.integers(0, 3), min_size=rows - 2, max_size=rows - 2))
    return torch.tensor(points, dtype=torch.float32), torch.tensor([0, 0, *labels])


@settings(max_examples=40)
@given(labelled_points())
def test_equals_the_oracle_within_one_set(data: tuple[Tensor, Tensor]) -> None:
    assert evaluate(*data) == pytest.approx(oracle(*data, *data, own=True), abs=1e-12)


@settings(max_examples=40)
@given(labelled_points(), labelled_points())
def test_equals_the_oracle_between_sets(queries: tuple[Tensor, Tensor], gallery: tuple[Tensor, Tensor]) -> None:
    assert evaluate(*queries, *gallery) == pytest.approx(oracle(*queries, *gallery, own=False), abs=1e-12)


@settings(max_examples=25)
@given(
    labelled_points(), st.integers(1, 12), st.randoms(use_true_random=False), st.sampled_from(["cosine", "euclidean"])
)
def test_row_order_and_chunks_change_nothing(data, chunk_size, random, distance) -> None:
    points, labels = data[0] + 0.1, data[1]
    order = torch.tensor(random.sample(range(len(labels)), len(labels)))
    before = evaluate(points, labels, distance=distance)
    assert evaluate(points[order], labels[order], distance=distance, chunk_size=chunk_size) == before
    assert all(0 <= value <= 1 for value in before.values())
    assert before["map@r"] <= before["r_precision"]


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dim", [33, 512])
def test_duplicated_rows_in_any_order_give_the_same_values(distance: Distance, dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, dim, generator=generator).repeat(5, 1)
    labels = torch.randint(0, 12, (200,), generator=generator)
    before = evaluate(points, labels, distance=distance)
    for chunk_size in (7, 64):
        order = torch.randperm(200, generator=generator)
        assert evaluate(points[order], labels[order], distance=distance, chunk_size=chunk_size) == before


def test_many_identical_embeddings_are_compared_exactly() -> None:
    found = retrieval_metrics(torch.ones(60, 4), torch.arange(60) // 2, recall_at=(1, 58, 59))
    assert found == {"recall@1": 0, "recall@58": 0, "recall@59": 1, "map@r": 0, "r_precision": 0}


def test_queries_without_relevant_items_are_left_out_and_counted() -> None:
    points = torch.tensor([[0.0, 0.1], [0.0, 1.0], [1.0, 0.0], [5.0, 5.0]])
    found = retrieval_metrics(points, torch.tensor([7, 7, 8, 9]), distance="euclidean")
    assert (found.queries, found.left_out, found["recall@1"]) == (2, 2, 1.0)
    found = retrieval_metrics(points, torch.tensor([7, 7, 8, 9]), points[:1], torch.tensor([9]))
    assert (found.queries, found.left_out, found["recall@1"]) == (1, 3, 1.0)
    with pytest.raises(ValueError, match="none of the 4 queries"):
        retrieval_metrics(points, torch.tensor([0, 1, 2, 3]))


@pytest.mark.usefixtures("unchecked")
def test_a_single_number_of_neighbours_is_refused_with_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"recall_at is 1 but must be a sequence of integers, such as \(1,\)"):
        retrieval_metrics(torch.eye(3), torch.tensor([0, 0, 0]), recall_at=1)  # type: ignore[arg-type]


def test_large_labels_do_not_merge() -> None:
    labels = torch.tensor([2**24, 2**24, 2**24 + 1, 2**24 + 1])
    points = torch.tensor([[0.0], [9.0], [0.1], [9.1]])
    assert retrieval_metrics(points, labels, distance="euclidean")["recall@1"] == 0


def test_k_beyond_the_gallery() -> None:
    found = retrieval_metrics(
        torch.eye(3), torch.tensor([0, 0, 0]), recall_at=(50,), precision_at=(50,), map_at=(50,), ndcg_at=(50,)
    )
    exact = {"recall@50": 1, "precision@50": 2 / 50, "map@50": 1, "ndcg@50": 1, "map@r": 1, "r_precision": 1}
    assert found == pytest.approx(exact)


def test_gradients_stay_out() -> None:
    points = torch.eye(2, requires_grad=True)
    assert retrieval_metrics(points, torch.tensor([0, 0]))["recall@1"] == 1


def test_nmi_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"pip install '.*\[train\]'"):
        retrieval_metrics(torch.eye(2), torch.tensor([0, 0]), nmi=True)


@pytest.mark.usefixtures("unchecked")
def test_refuses() -> None:
    points, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    broken = points.clone()
    broken[2, 1] = torch.nan
    refused = {
        r"query_labels has torch.float32 but must be int64": (points, labels.float()),
        r"queries has NaN or infinite values in 1 of 4": (broken, labels, points, labels),
        r"queries has shape \(0, 4\)": (points[:0], labels[:0]),
        r"gallery has 3 dimensions but queries 4": (points, labels, points[:, :3], labels),
        r"without gallery_labels": (points, labels, points),
        r"without a gallery": (points, labels, None, labels),
    }
    for message, arguments in refused.items():
        with pytest.raises(ValueError, match=message):
            retrieval_metrics(*arguments)
    for k in (0, -1, True):
        with pytest.raises(ValueError, match="ndcg_at holds"):
            retrieval_metrics(points, labels, ndcg_at=(5, k))
    with pytest.raises(ValueError, match="average is 'macro' but must be 'queries' or 'classes'"):
        retrieval_metrics(points, labels, average="macro")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="map_divisors holds 'max' but each must be one of 'min', 'k', 'hits', 'R'"):
        retrieval_metrics(points, labels, map_divisors=("max",))  # type: ignore[arg-type]


def test_queries_in_the_gallery_do_not_find_themselves() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(12, 3, generator=generator)
    labels = torch.arange(12) % 3
    asked = torch.tensor([4, 0, 7])
    # As if each query searched a gallery without itself.
    expected = []
    for index in asked.tolist():
        others = torch.arange(12) != index
        expected.append(retrieval_metrics(points[[index]], labels[[index]], points[others], labels[others]))
    found = retrieval_metrics(points[asked], labels[asked], points, labels, exclude=asked)
    for name in found:
        assert found[name] == pytest.approx(sum(item[name] for item in expected) / 3)
    # A query that is not in the gallery is excluded from nothing.
    outside = retrieval_metrics(points[asked] + 1, labels[asked], points, labels, exclude=torch.full((3,), -1))
    assert outside == retrieval_metrics(points[asked] + 1, labels[asked], points, labels)


@pytest.mark.parametrize(
    ("exclude", "words"), [([12, 0, 0], "outside -1 to 11"), ([2, 0, 7], "label"), ([4, 0], "exclude")]
)
def test_a_wrong_exclusion_is_refused(exclude: list[int], words: str) -> None:
    points, labels, asked = torch.randn(12, 3), torch.arange(12) % 3, torch.tensor([4, 0, 7])
    with pytest.raises(ValueError, match=words):
        retrieval_metrics(points[asked], labels[asked], points, labels, exclude=torch.tensor(exclude))


def test_with_one_class_everything_is_found() -> None:
    points = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    found = retrieval_metrics(points, torch.zeros(5, dtype=torch.int64), ndcg_at=(8,), precision_at=(8,), nmi=True)
    assert found.pop("precision@8") == pytest.approx(4 / 8)
    assert set(found.values()) == {1.0}


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("tied", [False, True])
def test_equals_a_full_sort_at_size(distance: Distance, tied: bool) -> None:
    """Many classes of very different sizes, a list of a thousand, several chunks."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.zeros(400, dtype=torch.int64), torch.randint(1, 300, (1600,), generator=generator)])
    points = torch.randn(300, 24, generator=generator)[labels] + 2 * torch.randn(2000, 24, generator=generator)
    points = (points * 2**10).round() / 2**10  # few digits: float64 holds the products
    if tied:  # binary codes: only the exact search can tell
        points = points.sign()
    exact = points.double()
    if distance == "cosine":
        norms = exact.norm(dim=1)
        distances = 1 - exact @ exact.T / norms / norms[:, None]
    else:
        distances = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    same = labels == labels[:, None]
    distances = distances.float().double()
    order = distances.where(~same, distances * (1 + 1e-9)).argsort(1)  # ties: the irrelevant first
    hits = same.gather(1, order)[:, :-1].double()
    counts = hits.sum(1)
    at = (1, 10, 300) if tied else (1, 10, 1000)
    precision = hits.cumsum(1) / torch.arange(1, 2000)
    expected = {f"recall@{k}": hits[:, :k].amax(1) for k in at}
    inside = hits * (torch.arange(1, 2000) <= counts[:, None])
    expected |= {"map@r": (inside * precision).sum(1) / counts, "r_precision": inside.sum(1) / counts}
    expected |= {"map": (hits * precision).sum(1) / counts, "mrr": 1.0 / (hits.argmax(1).double() + 1)}
    found = retrieval_metrics(points, labels, distance=distance, recall_at=at, chunk_size=300, map=True, mrr=True)
    for name, values in expected.items():
        torch.testing.assert_close(found.per_query[name], values.where(counts > 0, torch.nan), equal_nan=True)
        assert found[name] == pytest.approx(float(values[counts > 0].mean()), abs=1e-12)
    assert found.left_out == int((counts == 0).sum())


def test_equals_pytorch_metric_learning_where_that_is_right() -> None:
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 40
    points = torch.randn(40, 16, generator=generator)[labels] + torch.randn(300, 16, generator=generator)
    names = {
        "precision_at_1": "recall@1", "r_precision": "r_precision", "mean_average_precision_at_r": "map@r",
    }  # fmt: skip
    calculator = AccuracyCalculator(include=tuple(names), k="max_bin_count", knn_func=CustomKNN(CosineSimilarity()))
    theirs = calculator.get_accuracy(points, labels)
    ours = retrieval_metrics(points, labels)
    for their_name, name in names.items():
        assert ours[name] == pytest.approx(theirs[their_name], abs=1e-6)

    # What docs/migrating/metrics.md says of the others: over the whole list, and with k below R, which is 6 or 7 here.
    ours = retrieval_metrics(points, labels, map_at=(5,), map_divisors=("R",), precision_at=(5,), map=True, mrr=True)
    for k, their_names in {
        None: {"mean_average_precision": "map", "mean_reciprocal_rank": "mrr"},
        5: {"mean_average_precision": "map_over_r@5", "r_precision": "precision@5"},
    }.items():
        calculator = AccuracyCalculator(include=tuple(their_names), k=k, knn_func=CustomKNN(CosineSimilarity()))
        for their_name, value in calculator.get_accuracy(points, labels).items():
            assert ours[their_names[their_name]] == pytest.approx(value, abs=1e-6)


def oracle_of_sequences(
    points: Tensor, labels: Tensor, sequences: Tensor, asked: Tensor, searched: Tensor, k: int
) -> list[list[float]]:
    """Compute Recall@k, MAP@R, MAP, MRR, R and the number of searched rows of each query, in float64."""
    found = []
    distances = (points.double()[:, None] - points.double()).norm(dim=2).tolist()
    label, sequence = labels.tolist(), sequences.tolist()
    for i in asked.tolist():
        ranking = sorted(
            (distances[i][j], label[i] == label[j])
            for j in searched.tolist()
            if i != j and not (sequence[i] == sequence[j] >= 0)
        )
        hits = [int(relevant) for _, relevant in ranking]
        r = sum(hits)
        precision = [hits[n] * sum(hits[: n + 1]) / (n + 1) for n in range(len(hits))]
        values = [any(hits[:k]), sum(precision[:r]) / r, sum(precision) / r, 1 / (1 + hits.index(1))] if r else []
        found.append([*(values or [math.nan] * 4), r, len(hits)])
    return found


@pytest.mark.parametrize("decimals", [0, 6], ids=["tied", "apart"])
@pytest.mark.parametrize("apart", [False, True], ids=["one set", "two sets"])
def test_rows_of_a_querys_sequence_are_ignored(apart: bool, decimals: int) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 8, (160,), generator=generator)
    sequences = torch.randint(-10, 20, (160,), generator=generator)  # of mixed labels; a third in none
    labels[:30], sequences[:30] = 99, 500  # a class of which one burst is most: a long list, with little left in it
    labels[30:34] = 99
    points = torch.randn(8, 5, generator=generator)[labels % 8] + torch.randn(160, 5, generator=generator)
    points += torch.randn(600, 5, generator=generator)[sequences]  # what is in one sequence lies together
    points = points.round(decimals=decimals)
    asked = torch.arange(0, 160, 3) if apart else torch.arange(160)
    searched = torch.arange(20, 160) if apart else torch.arange(160)
    settings: dict[str, object] = {"query_sequences": sequences[asked]}
    sets = [points[asked], labels[asked]]
    if apart:
        sets += [points[searched], labels[searched]]
        settings |= {"gallery_sequences": sequences[searched], "exclude": (asked - 20).clamp(min=-1)}
    expected = torch.tensor(oracle_of_sequences(points, labels, sequences, asked, searched, k=2), dtype=torch.float64).T
    for chunk_size in (None, 7):
        found = retrieval_metrics(
            *sets, distance="euclidean", recall_at=(2, 150), map=True, mrr=True, chunk_size=chunk_size, **settings
        )  # type: ignore[arg-type]
        torch.testing.assert_close(found.per_query["recall@2"], expected[0], equal_nan=True, rtol=0, atol=0)
        for place, name in ((1, "map@r"), (2, "map"), (3, "mrr")):
            torch.testing.assert_close(found.per_query[name], expected[place], equal_nan=True, rtol=0, atol=1e-12)
        chance = (expected[4] / expected[5]).masked_fill(expected[4] == 0, math.nan)
        torch.testing.assert_close(found.expected["r_precision"], chance, equal_nan=True)
        assert found.per_query["recall@150"].nansum() == found.queries  # of all rows that are left
    without = retrieval_metrics(*sets, distance="euclidean", recall_at=(2,), exclude=settings.get("exclude"))  # type: ignore[arg-type]
    assert without["recall@2"] != found["recall@2"]


def test_sequences_of_none_change_nothing_and_wrong_ones_are_refused() -> None:
    points, labels = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    none = torch.arange(12) - 12
    assert retrieval_metrics(points, labels, query_sequences=none) == retrieval_metrics(points, labels)
    for message, given_sequences in {
        r"query_sequences has torch.float32": {"query_sequences": none.float()},
        r"query_sequences has shape \(3,\) but must be \[12\]": {"query_sequences": none[:3]},
        r"gallery_sequences is given without a gallery": {"gallery_sequences": none},
    }.items():
        with pytest.raises(ValueError, match=message):
            retrieval_metrics(points, labels, **given_sequences)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="go together"):
        retrieval_metrics(points, labels, points, labels, query_sequences=none)
