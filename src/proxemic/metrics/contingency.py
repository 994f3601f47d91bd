r"""Agreement of two partitions of the same samples, computed from their contingency table.

With classes $C$ and clusters $K$, entropies $H$ and mutual information $I(C, K) = H(K) - H(K \mid C)$, all in nats,

$$\text{NMI} = \frac{I(C, K)}{\text{mean}(H(C), H(K))} \qquad
\text{AMI} = \frac{I(C, K) - E[I]}{\text{mean}(H(C), H(K)) - E[I]}$$

where $E[I]$ is the mean over random clusters of the same sizes (Vinh, Epps and Bailey, Information theoretic measures
for clusterings comparison, JMLR 2010). Equal partitions score 1, and so does one class in one cluster, where both
fractions are 0/0; clusters that are independent of the classes have an NMI of 0.
"""

from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

EntropyMean = Literal["arithmetic", "geometric"]
_SAME = 1e-12  # nats; different partitions of n samples differ by more than 1/n


def contingency(
    labels: Int64[Tensor, "samples"], clusters: Int64[Tensor, "samples"]
) -> Float64[Tensor, "classes clusters"]:
    """Count the samples of each class in each cluster, as a sparse matrix on the CPU, ascending in both."""
    classes, rows = labels.cpu().unique(return_inverse=True)
    parts, columns = clusters.cpu().unique(return_inverse=True)
    ones = torch.ones(len(rows), dtype=torch.float64)
    return torch.sparse_coo_tensor(
        torch.stack([rows, columns]), ones, (len(classes), len(parts)), check_invariants=False
    ).coalesce()


def weighted_nmi(
    table: Float64[Tensor, "classes clusters"],
    weights: Float64[Tensor, "resamples classes"],
    *,
    average: EntropyMean = "arithmetic",
) -> Float64[Tensor, "resamples"]:
    """Compute NMI of the same clusters, with each sample counted as often as its class weighs."""
    classes, clusters, mutual = _entropies(table, weights)
    mean = (classes + clusters) / 2 if average == "arithmetic" else (classes * clusters).sqrt()
    score = torch.where(mean > 0, mutual / mean, 0.0).clamp(0.0, 1.0)
    return torch.where(classes + clusters - 2 * mutual < _SAME, 1.0, score)


def weighted_ami(
    table: Float64[Tensor, "classes clusters"], weights: Float64[Tensor, "resamples classes"]
) -> Float64[Tensor, "resamples"]:
    """Compute AMI with each sample counted as often as its class weighs, a whole number; takes 20 ms per resample."""
    classes, clusters, mutual = _entropies(table, weights)
    sizes, others = weights * table.sum(1).to_dense(), _cluster_sizes(table, weights)
    chance = torch.stack([_chance(*item) for item in zip(sizes, others, strict=True)])
    score = (mutual - chance) / ((classes + clusters) / 2 - chance)
    return torch.where(classes + clusters - 2 * mutual < _SAME, 1.0, score)


def expected_nmi(table: Float64[Tensor, "classes clusters"], *, average: EntropyMean = "arithmetic") -> float:
    """Compute the mean NMI of random clusters that have the same sizes as the clusters of the table."""
    everyone = torch.ones(1, table.shape[0], dtype=torch.float64)
    classes, clusters, _ = _entropies(table, everyone)
    mean = float((classes + clusters) / 2 if average == "arithmetic" else (classes * clusters).sqrt())
    if float(classes + clusters) < _SAME:
        return 1.0  # one class and one cluster
    return float(_chance(table.sum(1).to_dense(), table.sum(0).to_dense())) / mean if mean else 0.0


def _entropies(
    table: Float64[Tensor, "classes clusters"], weights: Float64[Tensor, "resamples classes"]
) -> tuple[Float64[Tensor, "resamples"], Float64[Tensor, "resamples"], Float64[Tensor, "resamples"]]:
    """Compute the entropy of classes and of clusters, and their mutual information."""
    sizes = table.sum(1).to_dense()
    rows, counts = table.indices()[0], table.values()
    total = weights @ sizes
    within = torch.zeros_like(sizes).index_add_(0, rows, counts * (sizes[rows] / counts).log())
    classes = torch.special.entr(weights * sizes / total[:, None]).sum(1)
    clusters = torch.special.entr(_cluster_sizes(table, weights) / total[:, None]).sum(1)
    return classes, clusters, (clusters - weights @ within / total).clamp_(min=0.0)


def _cluster_sizes(
    table: Float64[Tensor, "classes clusters"], weights: Float64[Tensor, "resamples classes"]
) -> Float64[Tensor, "resamples clusters"]:
    return torch.sparse.mm(table.T, weights.T).T


def _chance(sizes: Float64[Tensor, "classes"], others: Float64[Tensor, "clusters"]) -> Float64[Tensor, ""]:
    """Compute the mean mutual information of random partitions with these sizes: a hypergeometric mean per pair."""
    (a, a_times), (b, b_times) = (part[part > 0].long().unique(return_counts=True) for part in (sizes, others))
    rows, most = int(sizes.sum()), min(int(a[-1]), int(b[-1]))
    both = torch.arange(1, most + 1)
    logs = torch.arange(rows + 1, dtype=torch.float64).log()
    factorials = torch.arange(1, rows + 2, dtype=torch.float64).lgamma()
    # A negative number of samples is impossible: its factorial is infinite.
    padded = torch.cat([torch.full((most,), torch.inf, dtype=torch.float64), factorials])
    b_ways = factorials[b] + factorials[rows - b] - factorials[rows]
    total = torch.zeros((), dtype=torch.float64)
    # Classes of equal size contribute equally, and even many classes have few different sizes.
    for size, times in zip(a.tolist(), a_times.tolist(), strict=True):
        common = both[:size]
        ways = (factorials[size] + factorials[rows - size] + b_ways)[:, None] - padded[most + size - common]
        ways = ways - factorials[common] - padded[most + b[:, None] - common]
        ways -= padded[most + rows - size - b[:, None] + common]
        information = (logs[common] + logs[rows] - logs[size] - logs[b][:, None]) * common
        total += times * (ways.exp_() * information).sum(1) @ b_times.double()
    return total / rows
