"""Samples that sub-centers tell to be of another class: the cleaning of sub-center ArcFace."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from proxemic.losses.scores.similarity import InnerProduct, unit

HELD = 2**24
"""Embeddings are compared with a copy of their class's proxies each, of at most this many numbers (64 MiB)."""


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
    size = max(HELD // (per_class * dim), 1)
    proxies, parts = unit(proxies), zip(embeddings.split(size), labels.split(size), strict=True)
    cosines = torch.cat([InnerProduct().pairs(unit(x), proxies[label]) for x, label in parts])
    votes = torch.bincount(labels * per_class + cosines.argmax(1), minlength=classes * per_class)
    dominant = votes.view(classes, per_class).argmax(1)
    return cosines.gather(1, dominant[labels].unsqueeze(1)).squeeze(1) < cosine
