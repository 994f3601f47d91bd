"""Rows to report on: clusters of vectors, and pictures of noise, which no format makes small."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from proxemic.data import ImageSet, Rows
from proxemic.report import Judged
from proxemic.training import EvaluationConfig


def noise(row: int, side: int = 160) -> Image.Image:
    return Image.fromarray(np.random.default_rng(row).integers(0, 256, (side, side, 3), dtype=np.uint8))


def judged_rows(
    labels: Sequence[int],
    *,
    names: Sequence[str] | None = None,
    paths: Sequence[str] | None = None,
    spread: float = 0.6,
) -> Judged:
    """Vectors about the centres of their classes, of which some are nearer to another's; -1 is no label."""
    numbers = torch.tensor(labels)
    classes = int(numbers.max()) + 1
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes + 1, 8, generator=generator)
    embeddings = centres[numbers] + spread * torch.randn(len(labels), 8, generator=generator)
    rows = Rows.of(embeddings) if paths is None else Rows.of(embeddings, path=paths)
    images = ImageSet(rows, numbers, tuple(names or (f"class {number}" for number in range(classes))))
    config = EvaluationConfig(recall_at=(1,), ndcg_at=())
    return Judged("rows", "all", embeddings, images, config, lambda row, _: noise(row))


def with_sequences(judged: Judged, sequences: Sequence[str | None]) -> Judged:
    rows = judged.images.rows.with_texts(sequence=sequences)
    return replace(judged, images=replace(judged.images, rows=rows))
