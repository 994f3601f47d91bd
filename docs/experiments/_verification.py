"""Metrics for recipes: the true accept rate of pairs at a false accept rate of 0.001."""

import torch
import torch.nn.functional as F
from torch import Tensor

from proxemic.metrics.verification import tar_at_far

FAR = 1e-3


def accepted_by_euclidean(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the true accept rate of all pairs by Euclidean distance, at a false accept rate of 0.001.

    >>> accepted_by_euclidean(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]))
    {'tar': 1.0}
    """
    one, other = torch.triu_indices(len(labels), len(labels), offset=1)
    distances = torch.cdist(embeddings, embeddings)[one, other]
    return {"tar": tar_at_far(distances, labels[one] == labels[other], far=(FAR,))[FAR].tar}


def accepted_by_cosine(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the true accept rate of all pairs by cosine, at a false accept rate of 0.001.

    >>> accepted_by_cosine(torch.tensor([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [1.0, 9.0]]), torch.tensor([0, 0, 1, 1]))
    {'tar': 1.0}
    """
    return accepted_by_euclidean(F.normalize(embeddings), labels)
