"""A linear head over stored features: whitened from all rows, trained on labels, and kept only where it helps."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.metrics import nearest_neighbours
from proxemic.models import EmbeddingModel, ModelConfig, begin_at_principal_components, build_model

FOLDS = 3
FEW_LABELS = 5
"""From so many labels for each class on, the head moves three quarters of the way that training takes it, else half."""
# Chosen on the training classes of Cars196 alone (benchmarks/improve.py measures them on others).
_BATCH, _SCALE, _RATE = 256, 8.0, 1e-2
_LEAST_STEPS, _EPOCHS = 200, 5


@dataclass(frozen=True)
class Improvement:
    """A head, and how often the nearest row is right with and without it, on rows that it was not trained on.

    Args:
        head: From features to vectors of unit length, a model that takes vectors; None where the features themselves
            are best.
        kept: ``stock`` (the features), ``whitened`` or ``trained``.
        on_pictures: Recall@1, from 0 to 1, of held-out rows of labelled classes among the other labelled rows, for each
            of the three.
        on_classes: Recall@1 of the rows of held-out classes among each other: an estimate for classes like these.
        per_class: The mean number of labelled rows of a class.
        share: How far of the way that training takes it the head moved.
    """

    head: EmbeddingModel | None
    kept: str
    on_pictures: Mapping[str, float]
    on_classes: Mapping[str, float]
    per_class: float
    share: float


def whitened_head(features: Float[Tensor, "rows features"], dim: int = 512) -> EmbeddingModel:
    """Return a head that whitens features: their first principal components, each divided by its standard deviation.

    No labels are needed. Rows are scaled to unit length before and after.

    Args:
        features: At least two rows.
        dim: Numbers of a vector; at most those of the features are used.
    """
    size = features.shape[1]
    head = build_model(
        ModelConfig(
            "none", embedding_size=min(dim, size), input_size=size, unit_features=True, head_init="pca-whitened"
        )
    )
    begin_at_principal_components(head.head, features, whiten=True)
    return head.eval()


def trained_head(
    start: EmbeddingModel, features: Float[Tensor, "rows features"], labels: Int64[Tensor, " rows"], *, seed: int = 0
) -> EmbeddingModel:
    """Train a head by the normalised softmax loss, from a given one.

    Args:
        start: As `whitened_head` returns; it stays as it is.
        features: Labelled rows.
        labels: Their classes, from 0, without gaps.
        seed: Of the order of the rows.
    """
    head = deepcopy(start)
    generator = torch.Generator().manual_seed(seed)
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
    """Return the head that lies at a share, from 0 to 1, of the way from one to another."""
    head = deepcopy(start)
    with torch.no_grad():
        for value, other in zip(head.parameters(), end.parameters(), strict=True):
            value.lerp_(other, share)
    return head


def improve(
    features: Float[Tensor, "rows features"], labels: Int64[Tensor, " rows"], *, dim: int = 512, seed: int = 0
) -> Improvement:
    """Find the head that serves best for the features of a gallery.

    Three are compared: none (``stock``), `whitened_head`, which needs no labels, and a head that `trained_head` makes
    of it, moved half of that way, or three quarters from `FEW_LABELS` labels for each class on. A third of the labelled
    rows, and then a third of the classes, are held out in turn. A head is kept if held-out rows or held-out classes
    gain by it and neither loses; the one that is kept is then made again of all labels.

    Only the gain on labelled classes is promised. That on held-out classes is an estimate for classes like these, and
    with few labels an optimistic one. One label for each class is too little to train on.

    Args:
        features: At least two finite rows.
        labels: The class of each row; below 0 where there is none.
        dim: Numbers of a vector of the head.
        seed: Of what is drawn.

    Raises:
        ValueError: If fewer than two classes have two labels.
    """
    rows = (labels >= 0).nonzero().squeeze(1)
    classes, places, counts = labels[rows].unique(return_inverse=True, return_counts=True)
    if int((counts >= 2).sum()) < 2:
        raise ValueError("fewer than two classes have two labelled rows each: label more of them")
    per_class = len(rows) / len(classes)
    share = 0.5 if per_class < FEW_LABELS else 0.75
    whitened = whitened_head(features, dim)
    labelled = features[rows]

    def trained(chosen: Tensor) -> EmbeddingModel:
        of = places[chosen].unique(return_inverse=True)[1]
        return between(whitened, trained_head(whitened, labelled[chosen], of, seed=seed), share)

    generator = torch.Generator().manual_seed(seed)
    on_pictures, on_classes = _Recall(), _Recall()
    for held in _thirds(places, generator):
        on_pictures.count(labelled, places, whitened, trained(~held), ~held, held)
    drawn = torch.randperm(len(classes), generator=generator) % FOLDS
    for fold in range(min(FOLDS, len(classes) - 1)):
        held = drawn[places] == fold
        if bool(held.any()) and len(places[~held].unique()) > 1:
            on_classes.count(labelled, places, whitened, trained(~held), held, held)
    kept = "stock"
    for name in ("whitened", "trained"):
        gains = [recall.of[name] - recall.of[kept] for recall in (on_pictures, on_classes)]
        if max(gains) > 0 and min(gains) >= 0:
            kept = name
    head = {"stock": None, "whitened": whitened}.get(kept) if kept != "trained" else trained(rows >= 0)
    return Improvement(head, kept, on_pictures.shares(), on_classes.shares(), per_class, share)


class _Recall:
    """Counts queries whose nearest row is of their class, for each of the three."""

    def __init__(self) -> None:
        self.of = {"stock": 0, "whitened": 0, "trained": 0}
        self.queries = 0

    def count(
        self,
        features: Tensor,
        labels: Tensor,
        whitened: EmbeddingModel,
        trained: EmbeddingModel,
        gallery: Tensor,
        queries: Tensor,
    ) -> None:
        own = gallery.long().cumsum(0) - 1
        exclude = torch.where(gallery, own, -1)[queries]
        for name, head in (("stock", normalize), ("whitened", whitened), ("trained", trained)):
            with torch.no_grad():
                vectors = head(features)
            _, nearest = nearest_neighbours(vectors[queries], vectors[gallery], k=1, exclude=exclude)
            self.of[name] += int((labels[gallery][nearest[:, 0]] == labels[queries]).sum())
        self.queries += int(queries.sum())

    def shares(self) -> dict[str, float]:
        return {name: count / max(1, self.queries) for name, count in self.of.items()}


def _thirds(labels: Int64[Tensor, " rows"], generator: torch.Generator) -> list[Tensor]:
    """Return masks of about a third of the rows of each class; a class keeps at least one row in each."""
    order = torch.randperm(len(labels), generator=generator)
    place = torch.empty_like(labels)
    for label in labels.unique():
        own = order[labels[order] == label]
        place[own] = torch.arange(len(own)) if len(own) > 1 else -1
    return [
        (place >= 0) & (place % FOLDS == fold)
        for fold in range(FOLDS)
        if bool(((place >= 0) & (place % FOLDS == fold)).any())
    ]
