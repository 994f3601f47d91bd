"""Embeddings and proxies at one time of a training, and how compact their classes are."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scene:
    """Embeddings and proxies, in two or three dimensions.

    Args:
        embeddings: One embedding per image.
        labels: Their classes.
        proxies: Proxies of the classes; None for losses without.
    """

    embeddings: Float[Tensor, "images dim"]
    labels: Int64[Tensor, " images"]
    proxies: Float[Tensor, "classes proxies dim"] | None = None


def separation(scene: Scene) -> dict[str, float]:
    """How compact classes are, and how far apart, in any number of dimensions.

    Returns:
        ``within``: the mean over classes of the mean distance to the class's mean; ``between``: the mean distance
        between the means of two classes, and ``nearest``: to the nearest other one; ``ratio``: nearest over within.

    >>> places = torch.tensor([[0.0, 1.0], [0.0, -1.0], [6.0, 1.0], [6.0, -1.0]])
    >>> separation(Scene(places, torch.tensor([0, 0, 1, 1])))
    {'within': 1.0, 'between': 6.0, 'nearest': 6.0, 'ratio': 6.0}
    """
    embeddings, labels = scene.embeddings.double(), scene.labels
    count = labels.bincount().unsqueeze(1)
    means = torch.zeros(len(count), embeddings.shape[1], dtype=torch.float64).index_add(0, labels, embeddings) / count
    away = (embeddings - means[labels]).norm(dim=1)
    within = float((torch.zeros(len(count), dtype=torch.float64).index_add(0, labels, away) / count[:, 0]).mean())
    apart = torch.cdist(means, means)
    others = apart[~torch.eye(len(means), dtype=torch.bool)].view(len(means), -1)
    nearest = float(others.amin(1).mean())
    ratio = nearest / within if within else float("inf")
    return {"within": within, "between": float(others.mean()), "nearest": nearest, "ratio": ratio}
