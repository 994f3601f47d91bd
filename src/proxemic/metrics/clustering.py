"""How well k-means clusters of the embeddings agree with the classes."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor


def normalized_mutual_information(
    embeddings: Float[Tensor, "rows dim"],
    labels: Int[Tensor, "rows"],
    *,
    average: Literal["arithmetic", "geometric"] = "arithmetic",
    seed: int = 0,
) -> float:
    r"""Mutual information of classes and k-means clusters, over the mean of their entropies, in [0, 1].

    There are as many clusters as classes. Most papers divide by the arithmetic mean; the code of the realigned
    softmax warping paper by the geometric one.

    Args:
        embeddings: finite; normalise them first for a cosine embedding.
        labels: class of each row.
        average: which mean of the two entropies.
        seed: of the k-means initialisation.

    Raises:
        ImportError: without scikit-learn.
    """
    try:
        from sklearn.cluster import KMeans  # pyright: ignore[reportMissingImports]
        from sklearn.metrics import normalized_mutual_info_score  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("NMI needs scikit-learn, which is missing: pip install scikit-learn") from error
    classes = int(torch.unique(labels).numel())
    clusters = KMeans(classes, n_init=1, random_state=seed).fit_predict(embeddings.float().cpu().numpy())  # type: ignore[arg-type]
    value = normalized_mutual_info_score(labels.cpu().numpy(), clusters, average_method=average)
    return min(1.0, float(value))
