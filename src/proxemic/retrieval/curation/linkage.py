"""Average linkage of embeddings, and the distance at which its groups agree best with classes."""

from collections import Counter

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from proxemic.extras import optional_dependency
from proxemic.metrics import Distance


def average_linkage(
    x: Float[Tensor, "rows dim"], distance: Distance
) -> tuple[Int64[np.ndarray, "merges 2"], Float64[np.ndarray, " merges"]]:
    """Join the two groups of rows whose mean distance is least, until there is one.

    Returns:
        The two groups that each step joins, and their distance. Groups are numbered as in scikit-learn: first the rows,
        then the results of the steps.
    """
    with optional_dependency("train"):
        from sklearn.cluster import AgglomerativeClustering
    if len(x) < 2:
        return np.empty((0, 2), np.int64), np.empty(0)
    if distance == "cosine" and (zero := (x == 0).all(1)).any():
        raise ValueError(f"vector {int(zero.nonzero()[0])} is zero, and has no cosine distance: leave it out.")
    made = AgglomerativeClustering(
        n_clusters=None,  # pyright: ignore[reportArgumentType]
        distance_threshold=0,
        linkage="average",
        metric=distance,
    )
    made.fit(x.double().numpy())
    return np.asarray(made.children_, np.int64), np.asarray(made.distances_, np.float64)


def cut(
    merges: Int64[np.ndarray, "merges 2"], distances: Float64[np.ndarray, " merges"], threshold: float
) -> Int64[Tensor, " rows"]:
    """Number the groups of rows that are joined at mean distances below a threshold.

    >>> cut(np.array([[0, 1], [2, 3]]), np.array([0.1, 0.5]), 0.2).tolist()
    [1, 1, 0]
    """
    rows = len(merges) + 1
    group = np.arange(2 * rows - 1)
    for step in reversed(range(len(merges))):  # from the whole down to the rows
        if distances[step] < threshold:
            group[merges[step]] = group[rows + step]
    return torch.from_numpy(np.unique(group[:rows], return_inverse=True)[1])


def best_cut(
    merges: Int64[np.ndarray, "merges 2"], distances: Float64[np.ndarray, " merges"], labels: Int64[Tensor, " rows"]
) -> float:
    """Find the threshold whose groups agree best with classes, by the pairwise F1.

    >>> best_cut(np.array([[0, 1], [2, 3]]), np.array([0.1, 0.5]), torch.tensor([0, 0, 1]))
    0.3
    """
    groups = [Counter([label]) for label in labels.tolist()]
    true_pairs = sum(count * (count - 1) // 2 for count in Counter(labels.tolist()).values())
    right = joined = 0
    best, threshold = 0.0, 0.0
    for step, (one, other) in enumerate(merges.tolist()):
        small, large = sorted((groups[one], groups[other]), key=len)
        right += sum(count * large[label] for label, count in small.items())
        joined += small.total() * large.total()
        groups.append(small + large)
        groups[one] = groups[other] = Counter()
        score = 2 * right / (joined + true_pairs)
        if score > best:
            upper = distances[step + 1] if step + 1 < len(distances) else distances[step]
            best, threshold = score, float(distances[step] + upper) / 2
    return threshold
