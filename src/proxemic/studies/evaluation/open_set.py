"""Open-set identification of evaluated rows: some classes form the gallery, the others are unknown to it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.data.embeddings import LabelledEmbeddings, RowLabels
from proxemic.errors import UserError
from proxemic.metrics import (
    FEWEST_CLASSES,
    Distance,
    Interval,
    OpenSetIdentification,
    PairedDifference,
    open_set_identification,
    paired_differences,
)
from proxemic.metrics.open_set import threshold_name
from proxemic.studies.evaluation.table import MetricTable
from proxemic.tables import Format, Table

SPLIT = "open set"


@dataclass(frozen=True, eq=False)
class OpenSet:
    """Open-set identification of one model, and the number of images and of classes in the gallery."""

    found: OpenSetIdentification
    images: int
    classes: int

    @property
    def values(self) -> dict[str, float]:
        """Rates, then thresholds, by name."""
        return self.found.values | {threshold_name(rate): each.threshold for rate, each in self.found.points.items()}

    def content(self) -> dict[str, Any]:
        """For JSON."""
        mated, non_mated = self.found.mated.labels, self.found.non_mated.labels
        return {
            "gallery_classes": self.classes,
            "gallery_images": self.images,
            "mated_queries": len(mated),
            "non_mated_queries": len(non_mated),
            "non_mated_classes": len(non_mated.unique()),
            **self.values,
        }


@dataclass(frozen=True)
class OpenSetComparison:
    """Open-set identification of one model with intervals, or of two with their differences."""

    sets: tuple[OpenSet, ...]
    table: MetricTable

    @classmethod
    def of(cls, sets: Sequence[OpenSet], level: float, resamples: int) -> "OpenSetComparison":
        """Compute intervals, or differences, each model at thresholds of its own; 0 resamples compute neither."""
        first, *others = (each.found for each in sets)
        intervals: Mapping[str, Interval] = {}
        differences: Mapping[str, PairedDifference] = {}
        if resamples and not others:
            intervals = first.intervals(level=level, resamples=resamples)
            intervals = {name: each for name, each in intervals.items() if not math.isnan(each.low)}
        elif resamples:
            one, other = (
                {name: each.per_query[name].double() for name, value in each.values.items() if not math.isnan(value)}
                for each in (first, *others)
            )
            differences = paired_differences(one, other, first.mated.labels, level=level, resamples=resamples)
        table = MetricTable([each.values for each in sets], SPLIT, level, intervals, differences)
        return cls(tuple(sets), table)

    def text(self, form: Format) -> str:
        """Return a table for people: rates in percent, thresholds as they are."""
        first = self.sets[0]
        mated, non_mated = first.found.mated.labels, first.found.non_mated.labels
        title = (
            f"Open set: a gallery of {first.images:,} images of {first.classes:,} classes, {len(mated):,} queries of "
            f"these, and {len(non_mated):,} of {len(non_mated.unique()):,} classes that it lacks"
        )
        notes = []
        if unknown := [f"{rate:g}" for rate, point in first.found.points.items() if math.isnan(point.threshold)]:
            notes.append(
                f"Too few queries of classes that the gallery lacks to measure a false alarm rate of "
                f"{' and '.join(unknown)}."
            )
        if min(len(labels.unique()) for labels in (mated, non_mated)) < FEWEST_CLASSES:
            notes.append(f"With fewer than {FEWEST_CLASSES} classes of each kind no honest interval can be given.")
        return Table(*self.table.cells(self.table.has_bounds), title, notes).text(form)


def identify_open_set(name: str, content: LabelledEmbeddings, distance: Distance, seed: int) -> OpenSet:
    """Divide rows by `divide_open_set`, and identify the queries."""
    rows = content.rows
    if rows.labels is None or len(rows.labels[rows.labels >= 0].unique()) < 2:
        raise UserError(f"--open-set leaves classes out of the gallery, but {name} has not two: give more classes.")
    is_gallery, is_query = divide_open_set(rows, seed)
    gallery, queries = (kind.nonzero().squeeze(1) for kind in (is_gallery, is_query))
    place = torch.full((len(rows.labels),), -1)
    place[gallery] = torch.arange(len(gallery))
    sequences = None if rows.sequences is None else rows.sequences.numbers
    try:
        found = open_set_identification(
            content.embeddings[queries],
            rows.labels[queries],
            content.embeddings[gallery],
            rows.labels[gallery],
            distance=distance,
            exclude=place[queries],
            query_sequences=None if sequences is None else sequences[queries],
            gallery_sequences=None if sequences is None else sequences[gallery],
        )
    except ValueError as error:
        raise UserError(f"--open-set cannot be computed of {name}: {error}") from error
    return OpenSet(found, len(gallery), len(rows.labels[gallery].unique()))


def divide_open_set(rows: RowLabels, seed: int) -> tuple[Bool[Tensor, " rows"], Bool[Tensor, " rows"]]:
    """Which rows are in the gallery, and which are queries.

    Half of the classes, rounded down, are not in the gallery, and all their rows are queries; of every other class half
    of the rows, rounded down but at least one, are in the gallery, and the rest are queries. Where there are flags,
    these say which rows are which, and half of the classes are taken out of the gallery, unless there are queries of
    classes that it lacks already.
    """
    labels = rows.labels
    assert labels is not None
    generator = torch.Generator().manual_seed(seed)
    classes = labels[labels >= 0].unique()
    known = classes[torch.randperm(len(classes), generator=generator)][len(classes) // 2 :]
    if rows.is_query is not None and rows.is_gallery is not None:
        is_gallery, is_query = rows.is_gallery & (labels >= 0), rows.is_query & (labels >= 0)
        if torch.isin(labels[is_query], labels[is_gallery]).all():
            is_gallery = is_gallery & torch.isin(labels, known)
        return is_gallery, is_query
    is_gallery = torch.zeros(len(labels), dtype=torch.bool)
    for label in known.tolist():
        own: Int64[Tensor, " own"] = (labels == label).nonzero().squeeze(1)
        drawn = own[torch.randperm(len(own), generator=generator)]
        is_gallery[drawn[: max(1, len(own) // 2)]] = True
    return is_gallery, ~is_gallery & (labels >= 0)
