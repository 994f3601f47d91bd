"""Samples that sub-centers tell to be of another class: the cleaning of sub-center ArcFace."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from proxemic.losses.scores.similarity import unit

HELD = 2**24
"""Numbers: each embedding is compared with a copy of its class's proxies, of so many at a time (64 MiB in float32)."""


@torch.no_grad()
def far_from_dominant(
    embeddings: Float[Tensor, "rows dim"],
    labels: Int[Tensor, " rows"],
    proxies: Float[Tensor, "classes proxies dim"],
    cosine: float,
) -> Bool[Tensor, " rows"]:
    """Whether an embedding's cosine to the dominant sub-center of its class is below ``cosine``.

    A class's dominant sub-center is the proxy that most of its embeddings are nearest to; of several, the first.

    >>> proxies = torch.eye(2).unsqueeze(0)  # one class, two sub-centers
    >>> x = torch.tensor([[1.0, 0.1], [1.0, 0.0], [0.1, 1.0]])
    >>> far_from_dominant(x, torch.tensor([0, 0, 0]), proxies, 0.26)
    tensor([False, False,  True])
    """
    classes, per_class, dim = proxies.shape
    proxies = unit(proxies)
    size = max(HELD // (per_class * dim), 1)
    parts = [
        (proxies[label] @ unit(x).unsqueeze(2)).squeeze(2)
        for x, label in zip(embeddings.split(size), labels.split(size), strict=True)
    ]
    cosines = torch.cat(parts)
    votes = torch.bincount(labels * per_class + cosines.argmax(1), minlength=classes * per_class)
    dominant = votes.view(classes, per_class).argmax(1)
    return cosines.gather(1, dominant[labels].unsqueeze(1)).squeeze(1) < cosine
