"""Evaluate open-set identification: some classes form the gallery, and the others are unknown."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.errors import UserError
from proxemic.metrics import FEWEST_CLASSES, OpenSetIdentification, RetrievalResults, open_set_identification
from proxemic.metrics.open_set import threshold_name


@dataclass(frozen=True, eq=False)
class OpenSet:
    """The open-set identification of a model, with the number of images and classes in the gallery."""

    found: OpenSetIdentification
    images: int
    classes: int

    @property
    def values(self) -> dict[str, float]:
        """The rates and then the thresholds, by name."""
        return self.found.values | {threshold_name(rate): point.threshold for rate, point in self.found.points.items()}

    def content(self) -> dict[str, Any]:
        """Return counts and values for JSON."""
        non_mated = self.found.non_mated.labels
        counts = {"gallery_classes": self.classes, "gallery_images": self.images}
        counts |= {"mated_queries": len(self.found.mated.labels), "non_mated_queries": len(non_mated)}
        return counts | {"non_mated_classes": len(non_mated.unique())} | self.values

    @property
    def title(self) -> str:
        """A description of the gallery and the queries."""
        mated, non_mated = self.found.mated.labels, self.found.non_mated.labels
        return (
            f"Open set: a gallery of {self.images:,} images of {self.classes:,} classes, {len(mated):,} queries of "
            f"these, and {len(non_mated):,} of {len(non_mated.unique()):,} classes that it lacks"
        )

    @property
    def notes(self) -> list[str]:
        """Warnings about too few queries or classes."""
        notes = []
        if unknown := [f"{rate:g}" for rate, point in self.found.points.items() if math.isnan(point.threshold)]:
            rates = " and ".join(unknown)
            notes.append(f"Too few queries of classes that the gallery lacks to measure a false alarm rate of {rates}.")
        if min(len(item.labels.unique()) for item in (self.found.mated, self.found.non_mated)) < FEWEST_CLASSES:
            notes.append(f"With fewer than {FEWEST_CLASSES} classes of each kind, no honest interval can be given.")
        return notes


def identify_open_set(name: str, results: RetrievalResults, seed: int) -> OpenSet:
    """Divide the embeddings by `divide_open_set`, and identify the queries in the gallery."""
    x, labels, sequences = results.embeddings, results.labels, results.sequences
    if len(labels[labels >= 0].unique()) < 2:
        raise UserError(f"--open-set leaves classes out of the gallery, but {name} has less than two: give more.")
    gallery, queries = (kind.nonzero().squeeze(1) for kind in divide_open_set(results, seed))
    place = torch.full((len(labels),), -1)
    place[gallery] = torch.arange(len(gallery))
    try:
        found = open_set_identification(
            x[queries],
            labels[queries],
            x[gallery],
            labels[gallery],
            distance=results.distance,
            exclude=place[queries],
            query_sequences=None if sequences is None else sequences[queries],
            gallery_sequences=None if sequences is None else sequences[gallery],
        )
    except ValueError as error:
        raise UserError(f"--open-set cannot be computed for {name}: {error}") from error
    return OpenSet(found, len(gallery), len(labels[gallery].unique()))


def divide_open_set(results: RetrievalResults, seed: int) -> tuple[Bool[Tensor, " rows"], Bool[Tensor, " rows"]]:
    """Divide embeddings into a gallery and queries, and return a mask of each.

    The gallery lacks half of the classes (rounded down); all of their embeddings are queries. Half of the embeddings of
    every other class (rounded down, at least one) form the gallery, and the rest are queries. If there are a gallery
    and queries already, these are kept, and half of the classes are removed from the gallery, unless it already lacks
    classes of queries.
    """
    labels = results.labels
    generator = torch.Generator().manual_seed(seed)
    classes = labels[labels >= 0].unique()
    known = classes[torch.randperm(len(classes), generator=generator)][len(classes) // 2 :]
    if results.is_query is not None and results.is_gallery is not None:
        is_gallery, is_query = results.is_gallery & (labels >= 0), results.is_query & (labels >= 0)
        if torch.isin(labels[is_query], labels[is_gallery]).all():
            is_gallery = is_gallery & torch.isin(labels, known)
        return is_gallery, is_query
    is_gallery = torch.zeros(len(labels), dtype=torch.bool)
    for label in known.tolist():
        own: Int64[Tensor, " own"] = (labels == label).nonzero().squeeze(1)
        drawn = own[torch.randperm(len(own), generator=generator)]
        is_gallery[drawn[: max(1, len(own) // 2)]] = True
    return is_gallery, ~is_gallery & (labels >= 0)
