"""Rows to report on: clusters of vectors, and pictures of noise, which no format makes small."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from proxemic.data import RowGroups
from proxemic.data.embeddings import RowLabels
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
    rows = RowLabels(numbers, tuple(names or (f"class {number}" for number in range(classes))))
    if paths is not None:
        rows = replace(rows, paths=tuple(paths))
    config = EvaluationConfig(recall_at=(1,), ndcg_at=())
    return Judged("rows", "all", embeddings, rows, config, lambda row, _: noise(row))


def with_sequences(judged: Judged, sequences: Sequence[str | None]) -> Judged:
    return replace(judged, rows=replace(judged.rows, sequences=RowGroups.from_names(sequences)))
