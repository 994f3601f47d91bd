"""How well k-means clusters of the embeddings agree with the classes."""

import warnings
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float, Float32, Float64, Int64, Shaped
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.extras import optional_dependency
from proxemic.metrics.arrays import as_integers, check_finite, check_shape, take_arrays
from proxemic.metrics.contingency import EntropyMean, contingency, weighted_ami, weighted_nmi
from proxemic.metrics.exact import Distance, check_distance


@dataclass(frozen=True, eq=False)
class ClusteringMetrics:
    """Agreement of one k-means clustering with the classes.

    Args:
        nmi: Normalised mutual information, divided by the arithmetic mean of the entropies.
        nmi_geometric: The same, divided by their geometric mean.
        ami: Adjusted mutual information, with the arithmetic mean; may be a little below 0.
        table: How many rows of each class are in each cluster, sparse.
    """

    nmi: float
    nmi_geometric: float
    ami: float
    table: Float64[Tensor, "classes clusters"]


@take_arrays("embeddings", "labels")
def clustering_metrics(
    embeddings: Float[Tensor, "rows ..."],
    labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    seed: int = 0,
) -> ClusteringMetrics:
    """Cluster once, into as many clusters as there are classes, and compute NMI and AMI.

    The values are those of `retrieval_metrics` with ``nmi=True``. All scores are 1 with a single class, and 0 where all
    rows of several classes are equal.

    Arguments and errors: as `kmeans_clusters`; `labels` holds one integer per row.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 5.0], [0.1, 5.0]])
    >>> metrics = clustering_metrics(points, torch.tensor([3, 3, 8, 8]))
    >>> metrics.nmi, metrics.nmi_geometric, metrics.ami
    (1.0, 1.0, 1.0)
    >>> metrics.table.to_dense().sort().values
    tensor([[0., 2.],
            [0., 2.]], dtype=torch.float64)
    """
    labels = as_integers("labels", labels, len(embeddings))
    clusters = kmeans_clusters(embeddings, max(1, len(labels.unique())), distance=distance, seed=seed)
    table = contingency(labels, clusters)
    everyone = torch.ones(1, table.shape[0], dtype=torch.float64)
    return ClusteringMetrics(
        nmi=float(weighted_nmi(table, everyone)),
        nmi_geometric=float(weighted_nmi(table, everyone, average="geometric")),
        ami=float(weighted_ami(table, everyone)),
        table=table,
    )


@take_arrays("embeddings", "labels")
def normalized_mutual_information(
    embeddings: Float[Tensor, "rows ..."],
    labels: Shaped[Tensor, "..."],
    *,
    average: EntropyMean = "arithmetic",
    distance: Distance = "cosine",
    seed: int = 0,
) -> float:
    r"""Compute the mutual information of classes and k-means clusters, over the mean of their entropies, in [0, 1].

    Most papers divide by the arithmetic mean; the code of the realigned softmax warping paper by the geometric one.

    Arguments and errors: as `clustering_metrics`, and `average`, the mean of the two entropies.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 5.0], [0.1, 5.0]])
    >>> normalized_mutual_information(points, torch.tensor([0, 1, 0, 1]))
    0.0
    """
    if average not in get_args(EntropyMean):
        raise ValueError(f"average is {average!r} but must be 'arithmetic' or 'geometric'")
    metrics = clustering_metrics(embeddings, labels, distance=distance, seed=seed)
    return metrics.nmi if average == "arithmetic" else metrics.nmi_geometric


@take_arrays("embeddings", "labels")
def adjusted_mutual_information(
    embeddings: Float[Tensor, "rows ..."],
    labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    seed: int = 0,
) -> float:
    """Compute the mutual information of classes and k-means clusters, adjusted for chance: 0 if random, at most 1.

    Arguments and errors: as `clustering_metrics`.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 5.0], [0.1, 5.0]])
    >>> adjusted_mutual_information(points, torch.tensor([0, 0, 1, 1]))
    1.0
    """
    return clustering_metrics(embeddings, labels, distance=distance, seed=seed).ami


@dataclass(frozen=True)
class PartitionAgreement:
    """Agreement of clusters, however they were made, with the classes.

    Args:
        nmi: Normalised mutual information, divided by the arithmetic mean of the entropies.
        ami: Adjusted mutual information, with the arithmetic mean.
        precision: Share of the pairs of rows in one cluster that also share a class; 1 if there are none.
        recall: Share of the pairs of rows of one class that are also in one cluster; 1 if there are none.
        f1: The harmonic mean of the two.
    """

    nmi: float
    ami: float
    precision: float
    recall: float
    f1: float


@take_arrays("labels", "clusters")
def partition_agreement(labels: Shaped[Tensor, "..."], clusters: Shaped[Tensor, "..."]) -> PartitionAgreement:
    r"""Compute NMI, AMI and pairwise F1 of given clusters.

    With $n_{ck}$ rows of class c in cluster k, the pairs of rows that are together in both are
    $\sum_{ck} \binom{n_{ck}}{2}$; precision divides them by the pairs within clusters, recall by those within classes.

    Args:
        labels: The class of each row, integers.
        clusters: The cluster of each row; a row with a number below 0 is a cluster of its own.

    Raises:
        ValueError: If they are not integers, of different lengths, or empty.

    >>> partition_agreement(torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([5, 5, -1, 7, 7, 7])).f1
    0.5
    """
    labels = as_integers("labels", labels, len(labels)).cpu()
    clusters = as_integers("clusters", clusters, len(labels)).cpu().clone()
    alone = clusters < 0
    if not len(labels):
        raise ValueError("labels is empty, but agreement takes at least one row")
    clusters[alone] = clusters.amax().clamp(min=-1) + 1 + torch.arange(int(alone.sum()))
    table = contingency(labels, clusters)
    everyone = torch.ones(1, table.shape[0], dtype=torch.float64)
    together = _pairs(table.values())
    within = _pairs(table.sum(0).to_dense()), _pairs(table.sum(1).to_dense())
    precision, recall = (together / pairs if pairs else 1.0 for pairs in within)
    return PartitionAgreement(
        nmi=float(weighted_nmi(table, everyone)),
        ami=float(weighted_ami(table, everyone)),
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if precision + recall else 0.0,
    )


def _pairs(counts: Float64[Tensor, "..."]) -> float:
    return float((counts * (counts - 1) / 2).sum())


@take_arrays("embeddings")
def kmeans_clusters(
    embeddings: Float[Tensor, "rows ..."], number: int, *, distance: Distance = "cosine", seed: int = 0
) -> Int64[Tensor, "rows"]:
    """Cluster rows by Lloyd's k-means of scikit-learn, started once by k-means++, on the CPU in float32.

    With the cosine distance, rows are scaled to unit length first. The clusters do not depend on the order of the rows:
    equal rows are clustered as one, weighted by their number. With more clusters than distinct rows, each of these is a
    cluster.

    On one core 6,000 rows of 512 dimensions and 100 clusters take a second, 60,502 rows and 11,316 clusters (Stanford
    Online Products) half an hour.

    Args:
        embeddings: Finite.
        number: Number of clusters, at least 1.
        distance: ``cosine`` for rows of unit length, or ``euclidean`` for rows as they are.
        seed: Seed of the initialisation.

    Raises:
        ValueError: If an argument is out of its range or of a wrong shape.
        ModuleNotFoundError: Without scikit-learn, of the extra `train`.

    >>> kmeans_clusters(torch.tensor([[1.0], [2.0], [3.0]]), 2)
    tensor([0, 0, 0])
    """
    with optional_dependency("train"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"number is {number!r} but must be an integer of at least 1")
    check_distance(distance)
    check_shape("embeddings", embeddings)
    points = embeddings.detach().cpu().float()
    check_finite("embeddings", points)
    points = unit_rows(points) if distance == "cosine" else points
    # A power of two changes no digit, and keeps squares of very large or small numbers in the range of float32.
    points = points / _power_of_two(points.abs().amax())
    points, place, times = points.unique(dim=0, return_inverse=True, return_counts=True)
    kmeans = KMeans(min(number, len(points)), n_init=1, random_state=seed)  # pyright: ignore[reportArgumentType]
    # As many threads as torch computes with: the order of the sums, and so the last digits, depend on them.
    with warnings.catch_warnings(), threadpool_limits(torch.get_num_threads()):
        # Rows that differ by rounding alone may become equal once centred; then there are fewer clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = kmeans.fit_predict(points.numpy(), sample_weight=times.float().numpy())
    return torch.from_numpy(clusters).long()[place].to(embeddings.device)


def unit_rows(embeddings: Float[Tensor, "rows dim"]) -> Float32[Tensor, "rows dim"]:
    """Divide each row by its norm, however large or small it is; rows of zeros stay, and infinite ones become NaN."""
    rows = embeddings.float()
    # The squares of numbers above 1e19 or below 1e-23 leave the range of float32.
    return normalize(rows / _power_of_two(rows.abs().amax(1, keepdim=True)), dim=1)


def _power_of_two(values: Float32[Tensor, "*values"]) -> Float32[Tensor, "*values"]:
    """Return the largest power of two that is not above each value; 1 for 0."""
    # A mantissa is at least a half; twice it, as twice the power may be too large for float32.
    return torch.where(values == 0, 1.0, values / (2 * values.frexp().mantissa))
