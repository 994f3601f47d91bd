r"""Measure whether the K proxies of a class have found its local centres, such as the typefaces of a character.

The information that the nearest proxy of its class gives about a property of an image is the conditional mutual
information in bits,

$$I(\text{property}; \text{proxy} \mid \text{class}) = H(\text{property} \mid \text{class})
- H(\text{property} \mid \text{proxy}, \text{class}),$$

With few images it is above 0 by chance, so that it is compared with its values for shuffled properties.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.losses import ProxyLoss


@dataclass(frozen=True)
class LocalCenters:
    """The conditional mutual information in bits, with mean and 2.5 and 97.5 % quantiles of shuffled values.

    The upper bound `most` is the smaller one of the property's entropy within classes and log2 K.
    """

    information: float
    chance: float
    chance_range: tuple[float, float]
    most: float


@torch.no_grad()
def nearest_own_proxy(
    loss: ProxyLoss, embeddings: Float[Tensor, "batch dim"], labels: Int64[Tensor, " batch"]
) -> Int64[Tensor, " batch"]:
    """Return the index of the most similar proxy of its class for each embedding, by the loss's similarity."""
    similarity = loss.scoring.similarity
    queries = similarity.prepare(embeddings.to(loss.proxies.dtype))
    centers = loss.centers(loss.proxies)
    nearest = torch.empty(len(labels), dtype=torch.int64)
    for label in labels.unique().tolist():
        members = labels == label
        nearest[members] = similarity.dense(queries[members], centers[label]).argmax(1)
    return nearest


def proxies_used(classes: Int64[Tensor, " samples"], proxies: Int64[Tensor, " samples"]) -> float:
    """Compute the mean number of proxies per class that are the nearest of some image, from 1 to K."""
    return torch.stack([classes, proxies]).unique(dim=1).shape[1] / len(classes.unique())


@torch.no_grad()
def proxy_cosine(loss: ProxyLoss) -> float:
    """Compute the mean cosine between two proxies of a class; at 1 they have merged."""
    units = torch.nn.functional.normalize(loss.centers(loss.proxies).double(), dim=2)
    per_class = units.shape[1]
    sums = units.sum(1).square().sum(1)  # the sum of all K² cosines; the K on the diagonal are 1
    return float(((sums - per_class) / (per_class * (per_class - 1))).mean())


def conditional_information(
    classes: Int64[Tensor, " samples"], values: Int64[Tensor, " samples"], proxies: Int64[Tensor, " samples"]
) -> float:
    """Estimate `I(value; proxy | class)` in bits from samples of the three, by the plug-in estimator."""
    apart = _entropy(classes, values) + _entropy(classes, proxies)
    return apart - _entropy(classes, values, proxies) - _entropy(classes)


def shuffled_information(
    classes: Int64[Tensor, " samples"],
    values: Int64[Tensor, " samples"],
    proxies: Int64[Tensor, " samples"],
    *,
    units: Int64[Tensor, " samples"] | None = None,
    shuffles: int = 200,
    seed: int = 0,
) -> LocalCenters:
    """Compute the information, and its distribution for values shuffled within each class (by unit if given)."""
    rows = torch.arange(len(classes)) if units is None else units
    pairs, place = torch.stack([classes, rows]).unique(dim=1, return_inverse=True)
    value = torch.zeros(pairs.shape[1], dtype=torch.int64).scatter(0, place, values)
    if not torch.equal(value[place], values):
        raise ValueError("units has a unit with two values within a class, but units are shuffled as a whole.")
    generator = torch.Generator().manual_seed(seed)
    chance = []
    for _ in range(shuffles):
        # Units are sorted by class: sorting by class plus a random fraction shuffles within each class.
        order = (pairs[0] + torch.rand(len(value), generator=generator, dtype=torch.float64)).argsort()
        chance.append(conditional_information(classes, value[order][place], proxies))
    shuffled = torch.tensor(chance)
    least, largest = shuffled.quantile(torch.tensor([0.025, 0.975])).tolist()
    entropy = _entropy(classes, values) - _entropy(classes)
    most = min(entropy, float(torch.log2(proxies.max() + 1.0)))
    information = conditional_information(classes, values, proxies)
    return LocalCenters(information, shuffled.mean().item(), (least, largest), most)


def _entropy(*columns: Int64[Tensor, " samples"]) -> float:
    key = torch.zeros_like(columns[0])
    for column in columns:
        key = key * (column.max() + 1) + column
    counts = key.bincount().double()
    counts = counts[counts > 0]
    return float((counts.sum().log2() * counts.sum() - (counts * counts.log2()).sum()) / counts.sum())
