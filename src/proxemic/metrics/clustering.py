"""Agreement of k-means clusters of the embeddings with the classes."""

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
        nmi_geometric: Mutual information divided by the geometric mean of the entropies.
        ami: Adjusted mutual information, with the arithmetic mean; may be slightly below 0.
        table: Number of samples of each class in each cluster, a sparse matrix.
    """

    nmi: float
    nmi_geometric: float
    ami: float
    table: Float64[Tensor, "classes clusters"]


@take_arrays("embeddings", "labels")
def clustering_metrics(
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    seed: int = 0,
) -> ClusteringMetrics:
    """Cluster the embeddings into as many clusters as there are classes, and compute NMI and AMI.

    `retrieval_metrics` with ``nmi=True`` gives the same values. All scores are 1 for a single class, and 0 if all
    embeddings of several classes are equal.

    Arguments and errors are those of `kmeans_clusters`; `labels` are one integer per sample.

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
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    *,
    average: EntropyMean = "arithmetic",
    distance: Distance = "cosine",
    seed: int = 0,
) -> float:
    r"""Compute the mutual information of classes and k-means clusters over the mean of their entropies, in [0, 1].

    Most papers divide by the arithmetic mean; the code of the realigned softmax warping paper uses the geometric mean.

    Arguments and errors are those of `clustering_metrics`; `average` is the kind of mean of the two entropies.

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
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    seed: int = 0,
) -> float:
    """Compute the mutual information of classes and k-means clusters, adjusted for chance: 0 for random, at most 1.

    Arguments and errors are those of `clustering_metrics`.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 5.0], [0.1, 5.0]])
    >>> adjusted_mutual_information(points, torch.tensor([0, 0, 1, 1]))
    1.0
    """
    return clustering_metrics(embeddings, labels, distance=distance, seed=seed).ami


@dataclass(frozen=True)
class PartitionAgreement:
    """Agreement of any clusters with the classes.

    Args:
        nmi: Normalised mutual information, divided by the arithmetic mean of the entropies.
        ami: Adjusted mutual information, with the arithmetic mean.
        precision: Fraction of the pairs of samples in one cluster that are also of one class; 1 if there is no pair.
        recall: Fraction of the pairs of samples of one class that are also in one cluster; 1 if there is no pair.
        f1: Harmonic mean of precision and recall.
    """

    nmi: float
    ami: float
    precision: float
    recall: float
    f1: float


@take_arrays("labels", "clusters")
def partition_agreement(labels: Shaped[Tensor, "..."], clusters: Shaped[Tensor, "..."]) -> PartitionAgreement:
    r"""Compute NMI, AMI and pairwise F1 of given clusters.

    With $n_{ck}$ samples of class c in cluster k, $\sum_{ck} \binom{n_{ck}}{2}$ pairs of samples share both. Precision
    divides this number by that of the pairs within clusters, recall by that of the pairs within classes.

    Args:
        labels: `[samples]`, the class of each sample as an integer.
        clusters: `[samples]`, the cluster of each sample as an integer; a negative number is a cluster of this sample
            alone.

    Raises:
        ValueError: If there are no samples, or labels or clusters are not one integer per sample.

    >>> partition_agreement(torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([5, 5, -1, 7, 7, 7])).f1
    0.5
    """
    labels = as_integers("labels", labels, len(labels)).cpu()
    clusters = as_integers("clusters", clusters, len(labels)).cpu().clone()
    alone = clusters < 0
    if not len(labels):
        raise ValueError("labels is empty, but agreement needs at least one sample")
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
    embeddings: Float[Tensor, "samples ..."], number: int, *, distance: Distance = "cosine", seed: int = 0
) -> Int64[Tensor, "samples"]:
    """Cluster embeddings with scikit-learn's k-means (Lloyd), started once by k-means++, on the CPU in float32.

    With the cosine distance, embeddings are first scaled to unit length. The clusters do not depend on the order of the
    embeddings: equal embeddings are clustered as one, weighted by their number. If there are more clusters than
    distinct embeddings, each distinct embedding is a cluster.

    On one core, 6,000 embeddings of 512 dimensions take a second for 100 clusters; 60,502 embeddings and 11,316
    clusters (Stanford Online Products) take half an hour.

    Args:
        embeddings: `[samples, dim]`, finite.
        number: Number of clusters, at least 1.
        distance: ``"cosine"`` scales embeddings to unit length; ``"euclidean"`` leaves them unchanged.
        seed: Seed of the initialisation.

    Returns:
        `[samples]`, the cluster of each embedding.

    Raises:
        ValueError: If an argument is out of range or has a wrong shape.
        ModuleNotFoundError: If scikit-learn (extra `train`) is not installed.

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
    # A power of two changes no digit, and keeps squares of very large or small values in the range of float32.
    points = points / _power_of_two(points.abs().amax())
    points, place, times = points.unique(dim=0, return_inverse=True, return_counts=True)
    kmeans = KMeans(min(number, len(points)), n_init=1, random_state=seed)  # pyright: ignore[reportArgumentType]
    # As many threads as torch uses, because the order of the sums, and so the last digits, depends on their number.
    with warnings.catch_warnings(), threadpool_limits(torch.get_num_threads()):
        # Embeddings that differ only by rounding may be equal once centred; then there are fewer clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = kmeans.fit_predict(points.numpy(), sample_weight=times.float().numpy())
    return torch.from_numpy(clusters).long()[place].to(embeddings.device)


def unit_rows(embeddings: Float[Tensor, "samples dim"]) -> Float32[Tensor, "samples dim"]:
    """Divide each embedding by its norm, however large or small; zero vectors stay zero, infinite ones become NaN."""
    rows = embeddings.float()
    # Squares of values above 1e19 or below 1e-23 are outside the range of float32.
    return normalize(rows / _power_of_two(rows.abs().amax(1, keepdim=True)), dim=1)


def _power_of_two(values: Float32[Tensor, "*values"]) -> Float32[Tensor, "*values"]:
    """Return for each value the largest power of two up to it; 1 for 0."""
    # frexp's mantissa is at least a half. It is doubled, not the power, which might be too large for float32.
    return torch.where(values == 0, 1.0, values / (2 * values.frexp().mantissa))
