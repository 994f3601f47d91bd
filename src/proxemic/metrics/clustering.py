"""How well k-means clusters of the embeddings agree with the classes."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Float64, Int64, Shaped
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.extras import optional_dependency
from proxemic.metrics.arrays import as_integers, take_arrays
from proxemic.metrics.contingency import EntropyMean, contingency, weighted_ami, weighted_nmi


@dataclass(frozen=True, eq=False)
class ClusteringMetrics:
    """Scores of one k-means.

    Args:
        nmi: Over the arithmetic mean of the entropies.
        nmi_geometric: Over their geometric mean.
        ami: Over the arithmetic mean; may be a little below 0.
        table: `contingency` of classes and clusters.
    """

    nmi: float
    nmi_geometric: float
    ami: float
    table: Float64[Tensor, "classes clusters"]


@take_arrays("embeddings", "labels")
def clustering_metrics(
    embeddings: Float[Tensor, "rows ..."], labels: Shaped[Tensor, "..."], *, seed: int = 0
) -> ClusteringMetrics:
    """Cluster once, into as many clusters as there are classes, and score it in every way.

    With one class there is one cluster, and all scores are 1. Where all rows are equal there is one cluster too, which
    says nothing about several classes, and all scores are 0.

    Arguments and errors: as `kmeans_clusters`; `labels` holds one integer per row.

    >>> points = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> found = clustering_metrics(points, torch.tensor([3, 3, 8, 8]))
    >>> found.nmi, found.nmi_geometric, found.ami
    (1.0, 1.0, 1.0)
    >>> found.table.to_dense().sort().values
    tensor([[0., 2.],
            [0., 2.]], dtype=torch.float64)
    """
    table = _table(embeddings, labels, seed)
    everyone = table.new_ones(1, table.shape[0], layout=torch.strided)
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
    seed: int = 0,
) -> float:
    r"""Mutual information of classes and k-means clusters, over the mean of their entropies, in [0, 1].

    Most papers divide by the arithmetic mean; the code of the realigned softmax warping paper by the geometric one.

    Arguments and errors: as `clustering_metrics`, and `average` says which mean of the two entropies.

    >>> normalized_mutual_information(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([0, 1, 0, 1]))
    0.0
    """
    table = _table(embeddings, labels, seed)
    return float(weighted_nmi(table, table.new_ones(1, table.shape[0], layout=torch.strided), average=average))


@take_arrays("embeddings", "labels")
def adjusted_mutual_information(
    embeddings: Float[Tensor, "rows ..."], labels: Shaped[Tensor, "..."], *, seed: int = 0
) -> float:
    """Mutual information of classes and k-means clusters beyond what chance gives, at most 1.

    NMI grows with the number of classes even where the clusters are random; this does not: random ones have 0.

    Arguments and errors: as `clustering_metrics`.

    >>> adjusted_mutual_information(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([0, 0, 1, 1]))
    1.0
    """
    return clustering_metrics(embeddings, labels, seed=seed).ami


@take_arrays("embeddings")
def kmeans_clusters(embeddings: Float[Tensor, "rows ..."], number: int, *, seed: int = 0) -> Int64[Tensor, "rows"]:
    """Lloyd's k-means of scikit-learn, started once by k-means++.

    Equal rows are clustered as one with their number as its weight, and in the order of their values, so that
    neither the order of the rows nor which of them are equal matters. With more clusters than different rows, each
    of these is one. Always scikit-learn, on the CPU and in float32, never a faster library where there is one: the
    value would depend on it. All is divided by a power of two first, which changes no digit, so that squares of very
    large or small numbers stay in the range of float32.

    A step makes rows · number · dim products, and the start 2 + ln(number) times as many. On one core 6,000 rows of
    512 numbers and 100 clusters take a second, 60,502 rows and 11,316 clusters (Stanford Online Products) half an
    hour.

    Args:
        embeddings: Finite; `unit_rows` of them for a cosine embedding.
        number: Of clusters, at least 1.
        seed: Of the initialisation.

    Raises:
        ValueError: If an argument is out of its range or of a wrong shape.
        ModuleNotFoundError: Without scikit-learn, of the extra `train`.

    >>> kmeans_clusters(torch.tensor([[1.0], [1.0], [1.0]]), 2)
    tensor([0, 0, 0])
    """
    with optional_dependency("train"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"number is {number!r} but must be an integer of at least 1")
    points = _finite(embeddings)
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
    """Divide each row by its norm, however large or small it is; rows of zeros stay.

    Each is first divided by a power of two near its largest absolute value, as the squares of numbers above 1e19 or
    below 1e-23 leave the range of float32.

    Args:
        embeddings: Finite, dim at least 1; a row with other numbers becomes NaN.

    >>> unit_rows(torch.tensor([[3e30, -4e30], [3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[ 0.6000, -0.8000],
            [ 0.6000,  0.8000],
            [ 0.0000,  0.0000]])
    """
    rows = embeddings.float()
    return normalize(rows / _power_of_two(rows.abs().amax(1, keepdim=True)), dim=1)


def _power_of_two(values: Float32[Tensor, "*values"]) -> Float32[Tensor, "*values"]:
    """The largest that is not above each value; 1 for 0."""
    # A mantissa is at least a half; twice it, as twice the power may be too large for float32.
    return torch.where(values == 0, 1.0, values / (2 * values.frexp().mantissa))


def _table(
    embeddings: Float[Tensor, "rows ..."], labels: Shaped[Tensor, "..."], seed: int
) -> Float64[Tensor, "classes clusters"]:
    labels = as_integers("labels", labels, len(embeddings))
    return contingency(labels, kmeans_clusters(embeddings, max(1, len(labels.unique())), seed=seed))


def _finite(embeddings: Float[Tensor, "rows ..."]) -> Float[Tensor, "rows dim"]:
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(
            f"embeddings has shape {tuple(embeddings.shape)} but must be [rows, dim], with one or more of both"
        )
    points = embeddings.detach().cpu().float()
    broken = int((~points.isfinite()).any(1).sum())
    if broken:
        raise ValueError(f"embeddings has NaN or infinite values in {broken} of {len(points)} rows; fix or drop them")
    return points
