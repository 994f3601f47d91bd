"""K-means and its scores against scikit-learn, their invariances, and awkward cases."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from proxemic.metrics.clustering import (
    adjusted_mutual_information,
    clustering_metrics,
    kmeans_clusters,
    normalized_mutual_information,
    partition_agreement,
    unit_rows,
)
from proxemic.metrics.retrieval import retrieval_metrics

pytestmark = pytest.mark.cpu

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def blobs(rows: int = 240, classes: int = 8, noise: float = 0.6, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, 5, generator=generator)
    return centers[labels] + noise * torch.randn(rows, 5, generator=generator), labels


def test_equals_scikit_learn_at_the_same_clusters() -> None:
    points, labels = blobs()
    clusters = kmeans_clusters(points, 8)
    found = clustering_metrics(points, labels)
    assert 0.5 < found.nmi < 0.95
    assert found.nmi == pytest.approx(sklearn_metrics.normalized_mutual_info_score(labels, clusters), abs=1e-12)
    geometric = sklearn_metrics.normalized_mutual_info_score(labels, clusters, average_method="geometric")
    assert found.nmi_geometric == pytest.approx(geometric, abs=1e-12)
    assert found.ami == pytest.approx(sklearn_metrics.adjusted_mutual_info_score(labels, clusters), abs=1e-10)
    assert normalized_mutual_information(points, labels) == found.nmi
    assert normalized_mutual_information(points, labels, average="geometric") == found.nmi_geometric
    assert adjusted_mutual_information(points, labels) == found.ami
    dense = sklearn_metrics.cluster.contingency_matrix(labels, clusters)
    assert torch.equal(found.table.to_dense(), torch.from_numpy(dense).double())


def test_one_rule_with_retrieval_metrics() -> None:
    points, labels = blobs()
    points *= torch.logspace(-1, 1, 240)[:, None]  # so that lengths matter
    found: dict[str, float] = {}
    for distance in ("cosine", "euclidean"):
        clustering = clustering_metrics(points, labels, distance=distance)
        together = retrieval_metrics(points, labels, distance=distance, nmi=True)
        assert (together["nmi"], together["ami"]) == (clustering.nmi, clustering.ami)
        assert normalized_mutual_information(points, labels, distance=distance) == clustering.nmi
        assert adjusted_mutual_information(points, labels, distance=distance) == clustering.ami
        found[distance] = clustering.nmi
    assert found["cosine"] == clustering_metrics(points, labels).nmi != found["euclidean"]
    assert found["cosine"] == clustering_metrics(unit_rows(points), labels, distance="euclidean").nmi


def test_equal_rows_weigh_as_many_as_they_are() -> None:
    points = torch.tensor([0.0, 3.0, 10.0]).repeat_interleave(torch.tensor([1000, 1000, 1]))[:, None]
    for seed in range(5):
        clusters = kmeans_clusters(points, 2, distance="euclidean", seed=seed)
        assert int(clusters[0]) != int(clusters[1000]) == int(clusters[2000])


def test_the_order_of_rows_does_not_matter() -> None:
    points, labels = blobs(noise=1.0)
    points[::4] = points[1::4]  # equal rows, of other classes
    points[::5] = points[::5].round()
    points[0], points[1] = 0.0, -0.0
    expected = clustering_metrics(points, labels)
    clusters = kmeans_clusters(points, 8)
    for seed in range(5):
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(kmeans_clusters(points[order], 8), clusters[order])
        found = clustering_metrics(points[order], labels[order])
        assert (found.nmi, found.nmi_geometric, found.ami) == (expected.nmi, expected.nmi_geometric, expected.ami)


def test_the_seed_decides() -> None:
    points, labels = blobs(noise=1.5)
    assert torch.equal(kmeans_clusters(points, 8, seed=3), kmeans_clusters(points, 8, seed=3))
    assert len({normalized_mutual_information(points, labels, seed=seed) for seed in range(5)}) > 1


def test_names_of_classes_do_not_matter() -> None:
    points, labels = blobs()
    expected = clustering_metrics(points, labels)
    for renamed in (labels * 3 + 2**40, labels - 2**24, labels.int()):
        found = clustering_metrics(points, renamed)
        assert (found.nmi, found.ami) == (expected.nmi, expected.ami)


def test_one_class_is_one_cluster() -> None:
    points, _ = blobs()
    found = clustering_metrics(points, torch.full((240,), 7))
    assert (found.nmi, found.nmi_geometric, found.ami, found.table.shape) == (1.0, 1.0, 1.0, (1, 1))


def test_more_clusters_than_different_rows() -> None:
    points = torch.tensor([[0.0], [0.0], [1.0], [1.0], [1.0]])
    assert kmeans_clusters(points, 4, distance="euclidean").unique().numel() == 2
    assert clustering_metrics(torch.ones(6, 4), torch.arange(6) // 2).nmi == 0.0
    # Different, but not once their mean is subtracted in float32.
    near = torch.tensor([[1e-30], [2e-30], [3e-30], [1e8], [2e8], [3e8]])
    assert kmeans_clusters(near, 6, distance="euclidean").shape == (6,)


@pytest.mark.parametrize("factor", [2.0**60, 2.0**120, 2.0**-60, 2.0**-120, 1e19, 1e-30])
def test_the_scale_does_not_matter(factor: float) -> None:
    points, labels = blobs()
    expected, found = (clustering_metrics(value, labels, distance="euclidean") for value in (points, points * factor))
    assert expected.nmi > 0.5
    # A power of two changes no digit; another factor rounds.
    exact = factor not in (1e19, 1e-30)
    assert found.nmi == pytest.approx(expected.nmi, abs=0 if exact else 1e-2)
    assert found.ami == pytest.approx(expected.ami, abs=0 if exact else 1e-2)


def test_unit_rows_of_every_size() -> None:
    points, _ = blobs()
    plain = torch.nn.functional.normalize(points, dim=1)
    assert torch.equal(unit_rows(points), plain)
    for factor in (2.0**123, 2.0**-100, 2.0 ** -torch.arange(240)[:, None].clamp(max=110)):
        assert torch.equal(unit_rows(points * factor), plain)
    for value in (torch.finfo(torch.float32).max, 2.0**-149):
        assert unit_rows(torch.tensor([[value, -value, 0.0]])).tolist() == [pytest.approx([0.5**0.5, -(0.5**0.5), 0.0])]
    assert torch.equal(unit_rows(torch.tensor([[0.0, 0.0], [0.0, -2.0]])), torch.tensor([[0.0, 0.0], [0.0, -1.0]]))
    assert unit_rows(points.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    points, labels = blobs(noise=0.01)
    assert clustering_metrics(points.to(dtype).requires_grad_(), labels).nmi == 1.0


@pytest.mark.usefixtures("unchecked")
def test_refuses() -> None:
    points, labels = blobs(12, 3)
    broken = points.clone()
    broken[[2, 5], 1] = torch.tensor([torch.nan, torch.inf])
    refused = {
        r"embeddings has NaN or infinite values in 2 of 12": (broken, labels),
        r"labels has shape \(11,\) but must be \[12\]": (points, labels[1:]),
    }
    for message, arguments in refused.items():
        for score in (clustering_metrics, normalized_mutual_information, adjusted_mutual_information):
            with pytest.raises(ValueError, match=message):
                score(*arguments)
    with pytest.raises(ValueError, match="average is 'max' but must be 'arithmetic' or 'geometric'"):
        normalized_mutual_information(points, labels, average="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="number is 0 but must be"):
        kmeans_clusters(points, 0)


def test_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"pip install '.*\[train\]'"):
        kmeans_clusters(torch.eye(2), 2)


def agreement_by_definition(labels: list[int], clusters: list[int]) -> tuple[float, float, float]:
    """Compute precision, recall and F1 over all pairs of rows."""
    pairs = [(one, other) for one in range(len(labels)) for other in range(one)]
    alike = {(one, other) for one, other in pairs if labels[one] == labels[other]}
    together = {(one, other) for one, other in pairs if clusters[one] == clusters[other] >= 0}
    precision = len(alike & together) / len(together) if together else 1.0
    recall = len(alike & together) / len(alike) if alike else 1.0
    return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_agreement_of_given_clusters_equals_its_definition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (60,), generator=generator)
    clusters = torch.where(torch.rand(60, generator=generator) < 0.6, labels, torch.randint(-1, 5, (60,)))
    found = partition_agreement(labels, clusters)
    expected = agreement_by_definition(labels.tolist(), clusters.tolist())
    assert (found.precision, found.recall, found.f1) == pytest.approx(expected, abs=1e-12)
    alone = [100 + row if number < 0 else number for row, number in enumerate(clusters.tolist())]
    assert found.nmi == pytest.approx(sklearn_metrics.normalized_mutual_info_score(labels, alone), abs=1e-12)
    assert found.ami == pytest.approx(sklearn_metrics.adjusted_mutual_info_score(labels, alone), abs=1e-10)
    order = torch.randperm(60, generator=generator)
    arrays: Any = labels[order].numpy(), (clusters[order] * 3).tolist()
    again = partition_agreement(*arrays)
    assert again.f1 == pytest.approx(found.f1, abs=1e-12)


def test_agreement_without_pairs() -> None:
    rows = torch.arange(4)
    none = partition_agreement(rows, torch.full((4,), -1))
    assert (none.precision, none.recall, none.f1, none.nmi) == (1.0, 1.0, 1.0, 1.0)
    apart = partition_agreement(torch.zeros(4, dtype=torch.int64), torch.full((4,), -1))
    assert (apart.precision, apart.recall, apart.f1) == (1.0, 0.0, 0.0)
    crossed = partition_agreement(torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    assert (crossed.precision, crossed.recall, crossed.f1) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        partition_agreement(rows[:0], rows[:0])
