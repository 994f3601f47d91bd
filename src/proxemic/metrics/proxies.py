"""Distances of samples to their target proxies, and classification by the nearest proxy."""

import math

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics.arrays import as_integers, check_finite, check_shape, take_arrays
from proxemic.metrics.neighbours import Distance, nearest_neighbours

_NUMBERS = 2**21  # float64 coordinates held at once: 16 MB


@take_arrays("embeddings", "labels", "proxies")
def average_distance_to_proxy(
    embeddings: Float[Tensor, "samples ..."], labels: Shaped[Tensor, "..."], proxies: Float[Tensor, "..."]
) -> float:
    r"""Compute AvgDTP: the mean over classes of the mean Euclidean distance of a class's samples to its proxy.

    $$\text{AvgDTP} = \frac{1}{C} \sum_{c=1}^{C} \frac{1}{|P_c|} \sum_{e \in P_c} \lVert e - p_c \rVert$$

    where $P_c$ are the embeddings of class c. With several proxies per class, $p_c$ is the nearest of them. Classes
    without samples are left out. Nothing is normalised: pass unit embeddings and unit proxies if the loss uses cosines.

    Args:
        embeddings: `[samples, dim]`, finite embeddings of training images.
        labels: `[samples]`, the class of each sample, from 0 to classes - 1.
        proxies: `[classes, proxies, dim]`, finite.

    Raises:
        ValueError: If an argument is out of range or has a wrong shape.

    Source: DeMoor and Prevost, Realigned Softmax Warping for Deep Metric Learning, equation 9 and Table III.

    >>> proxies = torch.tensor([[[0.0, 0.0]], [[9.0, 9.0]]])
    >>> embeddings = torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 8.0]])
    >>> average_distance_to_proxy(embeddings, torch.tensor([0, 0, 1]), proxies)  # of 3 and 1
    2.0
    """
    means = class_distances_to_proxy(embeddings, labels, proxies)
    known = means[~means.isnan()].tolist()
    return math.fsum(known) / len(known)


@take_arrays("embeddings", "labels", "proxies")
def class_distances_to_proxy(
    embeddings: Float[Tensor, "samples ..."], labels: Shaped[Tensor, "..."], proxies: Float[Tensor, "..."]
) -> Float64[Tensor, "classes"]:
    """Compute for each class the mean Euclidean distance of its samples to its nearest proxy; NaN without samples.

    Arguments and errors are those of `average_distance_to_proxy`.

    >>> proxies = torch.tensor([[[0.0], [5.0]], [[0.0], [0.0]], [[9.0], [9.0]]])
    >>> class_distances_to_proxy(torch.tensor([[1.0], [4.0], [6.0]]), torch.tensor([0, 0, 2]), proxies)
    tensor([1., nan, 3.], dtype=torch.float64)
    """
    embeddings, labels, proxies = _checked(embeddings, labels, proxies)
    distances = torch.empty(len(labels), dtype=torch.float64, device=embeddings.device)
    for rows in torch.arange(len(labels), device=embeddings.device).split(max(1, _NUMBERS // proxies[0].numel())):
        away = proxies[labels[rows]].double() - embeddings[rows, None].double()
        distances[rows] = away.square_().sum(2).amin(1).sqrt_()
    # fsum rounds only once, so the order of the samples does not matter.
    counts = labels.bincount(minlength=len(proxies)).tolist()
    parts = distances[labels.argsort(stable=True)].cpu().split(counts)
    means = [math.fsum(part.tolist()) / len(part) if len(part) else math.nan for part in parts]
    return torch.tensor(means, dtype=torch.float64)


@take_arrays("embeddings", "labels", "proxies")
def proxy_accuracy(
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    proxies: Float[Tensor, "..."],
    *,
    distance: Distance = "cosine",
) -> float:
    """Compute the fraction of the samples whose nearest proxy belongs to their class, in [0, 1].

    Arguments and errors are those of `proxy_hits`.

    >>> proxies = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> embeddings = torch.tensor([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
    >>> proxy_accuracy(embeddings, torch.tensor([0, 1, 1, 0]), proxies)
    0.5
    """
    hits = proxy_hits(embeddings, labels, proxies, distance=distance)
    return int(hits.sum()) / len(hits)


@take_arrays("embeddings", "labels", "proxies")
def proxy_hits(
    embeddings: Float[Tensor, "samples ..."],
    labels: Shaped[Tensor, "..."],
    proxies: Float[Tensor, "..."],
    *,
    distance: Distance = "cosine",
) -> Bool[Tensor, "samples"]:
    """Return for each sample whether the nearest proxy belongs to its class; False if another class's is as near.

    A loss that pools the scores of several proxies per class may predict another class. `nearest_neighbours` finds the
    proxies: memory does not grow with samples times classes, and the order of samples does not matter.

    Arguments and errors are those of `average_distance_to_proxy`; `distance` should be the loss's.

    >>> proxies = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> proxy_hits(torch.tensor([[2.0, 1.0], [1.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]), proxies)
    tensor([ True, False,  True])
    """
    embeddings, labels, proxies = _checked(embeddings, labels, proxies)
    classes, per_class = proxies.shape[:2]
    # One more than the proxies of a class, so that the nearest proxy of another class is included.
    k = min(per_class + 1, classes * per_class)
    distances, nearest = nearest_neighbours(embeddings, proxies.flatten(0, 1), k=k, distance=distance)
    of_class = nearest // per_class == labels[:, None]
    inside, outside = (distances.masked_fill(mask, torch.inf).amin(1) for mask in (~of_class, of_class))
    return inside < outside


def _checked(
    embeddings: Float[Tensor, "samples ..."], labels: Shaped[Tensor, "..."], proxies: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "samples dim"], Int64[Tensor, "samples"], Float[Tensor, "classes proxies dim"]]:
    """Validate the arguments and move all to the device of the embeddings."""
    check_shape("embeddings", embeddings)
    if proxies.ndim != 3 or proxies.shape[2] != embeddings.shape[1] or 0 in proxies.shape:
        raise ValueError(
            f"proxies has shape {tuple(proxies.shape)} but must be [classes, proxies, {embeddings.shape[1]}]; "
            "one proxy per class is [classes, 1, dim]"
        )
    labels = as_integers("labels", labels, len(embeddings)).to(embeddings.device)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(proxies):
        raise ValueError(
            f"labels holds {low if low < 0 else high} but must be from 0 to {len(proxies) - 1}, the classes of proxies"
        )
    check_finite("embeddings", embeddings.float())
    check_finite("proxies", proxies.flatten(0, 1).float(), "proxies")
    return embeddings.detach(), labels, proxies.detach().to(embeddings.device)
