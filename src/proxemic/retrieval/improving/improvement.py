"""Train a linear head over stored features: whiten all features, train on labels, and keep only what helps."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.metrics import nearest_neighbours
from proxemic.models import EmbeddingModel, ModelConfig, begin_at_principal_components, build_model
from proxemic.models.heads import begin_at_components_of
from proxemic.retrieval.vectors.heads import ENOUGH_TO_WHITEN

FOLDS = 3
FEW_LABELS = 5
"""With this many labels per class or more, three quarters of the trained step are tried, too."""
_SHARES = {"trained 1/2": 0.5, "trained 3/4": 0.75}
_SURELY = 1.64  # standard deviations: chance causes such a loss once in twenty times
# Tuned on the training classes of Cars196 alone; benchmarks/improve.py measures them on other data.
_BATCH, _SCALE, _RATE = 256, 8.0, 1e-2
_LEAST_STEPS, _EPOCHS = 200, 5
_ROWS = 8192  # turned into float64 at a time


@dataclass(frozen=True)
class Improvement:
    """A head, and Recall@1 with and without it on samples that it was not trained on.

    Args:
        head: A model that maps features to vectors of unit length; None if the features themselves are best.
        kept: The best candidate: ``stock`` (the features), ``whitened``, ``trained 1/2`` or ``trained 3/4``.
        on_pictures: Recall@1, from 0 to 1, of each candidate for held-out samples of labelled classes, among the other
            labelled samples.
        on_classes: Recall@1 of each candidate for samples of held-out classes, among each other: an estimate for new
            classes like these.
        per_class: Mean number of labelled samples per class.
    """

    head: EmbeddingModel | None
    kept: str
    on_pictures: Mapping[str, float]
    on_classes: Mapping[str, float]
    per_class: float


def whitened_head(features: Float[Tensor, "samples features"], dim: int = 512) -> EmbeddingModel:
    """Return a head that whitens features: their first principal components, each divided by its standard deviation.

    It needs no labels, and scales features and outputs to unit length.

    Args:
        features: Features of at least two samples, ``[samples, features]``.
        dim: Number of dimensions of a vector; at most as many as the features have.

    Returns:
        A model that maps features ``[samples, features]`` to unit vectors ``[samples, dim]``.

    >>> whitened_head(torch.randn(20, 4), dim=2)(torch.randn(3, 4)).shape
    torch.Size([3, 2])
    """
    head = _new_head(features.shape[1], dim)
    begin_at_principal_components(head.head, features, whiten=True)
    return head.eval()


def _new_head(size: int, dim: int) -> EmbeddingModel:
    with torch.random.fork_rng(devices=[]):  # its random weights are replaced
        return build_model(
            ModelConfig(
                "none", embedding_size=min(dim, size), input_size=size, unit_features=True, head_init="pca-whitened"
            )
        )


def trained_head(
    start: EmbeddingModel,
    features: Float[Tensor, "samples features"],
    labels: Int64[Tensor, " samples"],
    *,
    seed: int = 0,
) -> EmbeddingModel:
    """Train a copy of a head by the normalised softmax loss.

    Args:
        start: The initial head, such as from `whitened_head`; it is unchanged.
        features: Features of labelled samples, ``[samples, features]``.
        labels: Class numbers ``[samples]`` from 0, without gaps.
        seed: Seed of the proxies and of the order of the samples.

    Returns:
        The trained head.

    >>> rows, labels = torch.randn(20, 4), torch.arange(20) % 2
    >>> trained_head(whitened_head(rows), rows, labels)(rows).shape
    torch.Size([20, 4])
    """
    from proxemic.losses import NormalizedSoftmaxLoss  # which a search does not need

    head = deepcopy(start)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loss = NormalizedSoftmaxLoss(int(labels.max()) + 1, head.config.embedding_size, scale=_SCALE)
    with torch.no_grad():
        loss.begin_at_class_means(head(features), labels)
    steps = max(_LEAST_STEPS, _EPOCHS * len(labels) // _BATCH)
    optimizer = torch.optim.Adam([*head.parameters(), *loss.parameters()], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(labels), (min(_BATCH, len(labels)),), generator=generator)
        optimizer.zero_grad()
        loss(head(features[rows]), labels[rows]).backward()
        optimizer.step()
        schedule.step()
    return head.eval()


def between(start: EmbeddingModel, end: EmbeddingModel, share: float) -> EmbeddingModel:
    """Interpolate between two heads: a `share` of 0 returns the first, 1 the second."""
    head = deepcopy(start)
    with torch.no_grad():
        for value, other in zip(head.parameters(), end.parameters(), strict=True):
            value.lerp_(other, share)
    return head


def heads_without(
    features: Float[Tensor, "samples features"],
    labels: Int64[Tensor, " samples"],
    groups: Int64[Tensor, " samples"],
    kept: str,
    *,
    dim: int,
    seed: int = 0,
) -> Iterator[tuple[int, EmbeddingModel]]:
    """Yield each group of samples, from 0, and the head `Improvement.kept` that is made without these samples.

    Labels and groups are below 0 for samples without; samples without a group are in all heads.
    """
    rows = normalize(features, dim=1)
    total, products = _sums(rows)
    for group in range(int(groups.max()) + 1):
        own = groups == group
        count, (own_total, own_products) = int((~own).sum()), _sums(rows[own])
        mean = (total - own_total) / count
        covariance = (products - own_products - count * mean.outer(mean)) / (count - 1)
        head = _new_head(features.shape[1], dim).eval()
        begin_at_components_of(head.head, mean, covariance, whiten=True)
        if kept != "whitened":
            chosen = ~own & (labels >= 0)
            end = trained_head(head, features[chosen], labels[chosen].unique(return_inverse=True)[1], seed=seed)
            head = between(head, end, _SHARES[kept])
        yield group, head


def _sums(rows: Float[Tensor, "samples features"]) -> tuple[Float64[Tensor, " f"], Float64[Tensor, "f f"]]:
    """Return the sum of the features and of their outer products."""
    size = rows.shape[1]
    total, products = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    for part in rows.split(_ROWS):
        total += part.double().sum(0)
        products += part.double().T @ part.double()
    return total, products


def improve(
    features: Float[Tensor, "samples features"], labels: Int64[Tensor, " samples"], *, dim: int = 512, seed: int = 0
) -> Improvement:
    """Find the best head for the features of a gallery.

    The candidates are the features themselves (``stock``), `whitened_head`, and `trained_head` of that, half of the way
    from the whitened head or, with `FEW_LABELS` labels per class or more, also three quarters. A third of the labelled
    samples, and then a third of the classes, are held out in turn. In this order, a candidate replaces the one before
    if it gains on held-out samples and classes together, and does not surely lose on either (by McNemar's test). With
    `ENOUGH_TO_WHITEN` samples or more, whitening need not gain; without two classes of two labels, it is kept untested.
    The best head is then trained again on all labels.

    Only the gain on labelled classes is measured for your use; the gain on held-out classes is an estimate for classes
    like these, and optimistic if labels are few. One label per class is too little to train on.

    Args:
        features: Finite features of at least two samples, ``[samples, features]``.
        labels: The class of each sample; below 0 for samples without a label.
        dim: Number of output dimensions of the head.
        seed: Seed of all random choices.

    Returns:
        The best head, and Recall@1 of all candidates.

    Raises:
        ValueError: If fewer than two classes have two labels, and there are too few samples to whiten.

    >>> improve(torch.eye(4).repeat_interleave(4, dim=0), torch.arange(4).repeat_interleave(4)).kept
    'stock'
    """
    rows = (labels >= 0).nonzero().squeeze(1)
    classes, places, counts = labels[rows].unique(return_inverse=True, return_counts=True)
    per_class = len(rows) / max(len(classes), 1)
    if int((counts >= 2).sum()) < 2:
        if len(features) < ENOUGH_TO_WHITEN:
            raise ValueError("fewer than two classes have two labelled samples each: label more of them")
        return Improvement(whitened_head(features, dim), "whitened", {}, {}, per_class)
    shares = {name: share for name, share in _SHARES.items() if share == 0.5 or per_class >= FEW_LABELS}
    whitened = whitened_head(features, dim)
    labelled = features[rows]

    def heads(chosen: Tensor) -> dict[str, EmbeddingModel]:
        of = places[chosen].unique(return_inverse=True)[1]
        end = trained_head(whitened, labelled[chosen], of, seed=seed)
        return {"whitened": whitened, **{name: between(whitened, end, share) for name, share in shares.items()}}

    generator = torch.Generator().manual_seed(seed)
    on_pictures, on_classes = _Hits(), _Hits()
    for held in _thirds(places, generator):
        on_pictures.count(labelled, places, heads(~held), ~held, held)
    drawn = torch.randperm(len(classes), generator=generator) % FOLDS
    for fold in range(FOLDS):
        held = drawn[places] == fold
        if bool(held.any()) and len(places[~held].unique()) > 1:
            on_classes.count(labelled, places, heads(~held), held, held)
    kept = "stock"
    for name in ("whitened", *shares):
        gains = [hits.gain(name, kept) for hits in (on_pictures, on_classes)]
        expected = name == "whitened" and len(features) >= ENOUGH_TO_WHITEN
        if (expected or sum(gain for gain, _ in gains) > 0) and min(sure for _, sure in gains) > -_SURELY:
            kept = name
    head = None if kept == "stock" else heads(torch.ones(len(rows), dtype=torch.bool))[kept]
    return Improvement(head, kept, on_pictures.recall(), on_classes.recall(), per_class)


class _Hits:
    """For each query and head, whether the nearest sample has the query's class."""

    def __init__(self) -> None:
        self._of: dict[str, list[Tensor]] = {}

    def count(
        self, features: Tensor, labels: Tensor, heads: Mapping[str, EmbeddingModel], gallery: Tensor, queries: Tensor
    ) -> None:
        """Search samples for queries, which may be among these samples."""
        exclude = torch.where(gallery, gallery.long().cumsum(0) - 1, -1)[queries]
        for name, head in {"stock": normalize, **heads}.items():
            with torch.no_grad():
                vectors = head(features)
            _, nearest = nearest_neighbours(vectors[queries], vectors[gallery], k=1, exclude=exclude)
            self._of.setdefault(name, []).append(labels[gallery][nearest[:, 0]] == labels[queries])

    def recall(self) -> dict[str, float]:
        """Return Recall@1 with each head."""
        return {name: torch.cat(hits).double().mean().item() for name, hits in self._of.items()}

    def gain(self, name: str, over: str) -> tuple[float, float]:
        """Return the difference of Recall@1 between two heads, and the same in standard deviations."""
        if not self._of:
            return 0.0, 0.0
        changes = torch.cat(self._of[name]).double() - torch.cat(self._of[over]).double()
        return changes.mean().item(), (changes.sum() / changes.abs().sum().clamp(min=1).sqrt()).item()


def _thirds(labels: Int64[Tensor, " samples"], generator: torch.Generator) -> list[Tensor]:
    """Return masks that each hold out about a third of the samples of each class, and leave at least one of them."""
    order = torch.randperm(len(labels), generator=generator)
    place = torch.empty_like(labels)
    for label in labels.unique():
        own = order[labels[order] == label]
        place[own] = torch.arange(len(own)) if len(own) > 1 else -1
    masks = [(place >= 0) & (place % FOLDS == fold) for fold in range(FOLDS)]
    return [mask for mask in masks if bool(mask.any())]
