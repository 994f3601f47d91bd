"""Compare an exported file with its model: embeddings and Recall@1 on real images."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from proxemic.data import FilePixels, ImageSet
from proxemic.data.sources.listing import list_pictures
from proxemic.errors import UserError
from proxemic.metrics import RetrievalMetrics
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import embed_pictures
from proxemic.runs.evaluate import EvaluationConfig, evaluate_embeddings

LARGEST_DIFFERENCE = 1e-4
"""Largest allowed difference of a dimension of an embedding, in units of the mean length of embeddings."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Embeddings ``[N, D]`` of the readable images by a model, and their metrics as the run evaluates them."""

    images: ImageSet
    embeddings: Tensor
    metrics: RetrievalMetrics

    @property
    def recall(self) -> float:
        """Recall@1."""
        return self.metrics["recall@1"]

    def difference(self, other: "Measured") -> float:
        """Return the largest difference of a dimension of the embeddings, in units of the mean length."""
        return largest_difference(self.embeddings, other.embeddings)


def largest_difference(reference: Tensor, other: Tensor) -> float:
    """Return the largest difference of a dimension of embeddings, in units of the mean length of the first."""
    return float((reference - other).abs().max() / reference.norm(dim=1).mean())


def labelled_images(source: str | os.PathLike[str]) -> ImageSet:
    """Return the labelled images of a folder or a table; `UserError` without two classes."""
    pictures = list_pictures(source)
    labelled = pictures.take([row for row, label in enumerate(pictures.labels) if label is not None])
    if len({*labelled.labels}) < 2:
        raise UserError(
            f"{source} has no photos of two classes, but Recall@1 is measured: give a folder with a folder for each "
            "class, or a table with the columns path and label."
        )
    return ImageSet.of(labelled, flagged=False)


def whole_classes(images: ImageSet, most: int) -> ImageSet:
    """Choose random classes with at least `most` images in all, and return all their images."""
    if len(images) <= most:
        return images
    order = torch.randperm(images.num_classes, generator=torch.Generator().manual_seed(0))
    counts = images.labels.bincount(minlength=images.num_classes)[order].cumsum(0)
    return images.select_classes(order[: int((counts < most).sum()) + 1].sort().values)


def measure(
    embedder: Embedder,
    images: ImageSet,
    config: EvaluationConfig,
    *,
    batch_size: int,
    workers: int,
    description: str,
    report: Callable[[str], object],
) -> Measured:
    """Embed images and evaluate the embeddings."""
    report(f"Embedding {len(images):,} images by {description}")
    found = embed_pictures(embedder, images, batch_size=batch_size, workers=workers, description=description)
    if found.unreadable:
        place, why = next(iter(found.unreadable.items()))
        name = images.pixels.names[place] if isinstance(images.pixels, FilePixels) else f"number {place + 1:,}"
        report(f"{len(found.unreadable):,} of {len(images):,} images cannot be read, and are left out: {name} ({why}).")
    if not found.embeddings.isfinite().all():
        raise UserError(f"Embeddings of {description} are not finite: check the weights, or leave out --half.")
    images = images if len(found.places) == len(images) else images.select(found.places)
    config = replace(config, recall_at=sorted({1, *config.recall_at}), nmi=False)
    return Measured(images, found.embeddings, evaluate_embeddings(found.embeddings, images, config))


def check(model: Measured, file: Measured) -> None:
    """Raise `UserError` unless the file has the same embeddings, up to rounding, and the same Recall@1."""
    difference = model.difference(file)
    if difference > LARGEST_DIFFERENCE or model.recall != file.recall:
        changed = int((_hits(model) != _hits(file)).sum())
        raise UserError(
            f"The exported file is not the same model, so that it is not kept: on {len(model.images):,} images its "
            f"embeddings differ by up to {difference:.1e} (allowed: {LARGEST_DIFFERENCE:.0e}), and its Recall@1 is "
            f"{100 * file.recall:.2f} instead of {100 * model.recall:.2f} ({changed:,} queries changed); try --to "
            "torch, or other images (--data.root, --images)."
        )


def _hits(of: Measured) -> Tensor:
    return of.metrics.per_query["recall@1"].nan_to_num()
