"""Recognise images by the nearest labelled image of a gallery, or report them as unknown."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from proxemic.data.rows import Rows
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.hits import Recognition
from proxemic.retrieval.searching.search import embed_queries
from proxemic.tables import MISSING, Table, without_nan


@dataclass(frozen=True)
class Recognitions:
    """Result of recognising queries.

    Args:
        gallery: The address of the gallery.
        threshold: The largest distance at which a label is accepted.
        rate: The false accept rate of the threshold; None if the threshold was given.
        queries: The name and the answer of each query.
        unreadable: Why other queries could not be read, by their names.
        notes: Notes for the user.
        labels: The label of each query, or None.
        known: The labels of the gallery.
        learnt: The data from which the threshold was learnt, as words.
    """

    gallery: str
    threshold: float
    rate: float | None
    queries: Sequence[tuple[str, Recognition]]
    unreadable: dict[str, str]
    notes: tuple[str, ...] = ()
    labels: Sequence[str | None] = ()
    known: frozenset[str] = frozenset()
    learnt: str = ""

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the labelled queries that are named right or wrong, or called unknown.

        Returns:
            The counts ``right``, ``wrong`` and ``unknown`` of queries whose class is in the gallery (``known``), and of
            other queries (``new``), for which unknown is the right answer and any name is wrong.
        """
        counts: dict[str, dict[str, int]] = {kind: {"right": 0, "wrong": 0, "unknown": 0} for kind in ("known", "new")}
        for (_, found), label in zip(self.queries, self.labels, strict=False):
            if label is not None:
                named = "unknown" if found.label is None else "right" if found.label == label else "wrong"
                counts["known" if label in self.known else "new"][named] += 1
        return counts

    def _score(self) -> list[str]:
        said = []
        for kind, of in (("known", "of classes of the gallery"), ("new", "of other classes")):
            right, wrong, unknown = self.counts()[kind].values()
            if total := right + wrong + unknown:
                named = f"{right:,} right, {wrong:,} wrong" if kind == "known" else f"{wrong:,} named, which is wrong"
                said.append(f"{total:,} labelled queries {of}: {named}, {unknown:,} unknown.")
        return said

    def text(self, form: Literal["table", "json", "csv"] = "table") -> str:
        """Format as a table for people, as a JSON list or as CSV, where unknown is null or an empty cell."""
        if form == "table":
            rows = [
                [
                    name,
                    item.label or "unknown",
                    MISSING if item.nearest is None else f"{item.distance:.4f}",
                    item.nearest and item.nearest.path,
                ]
                for name, item in self.queries
            ]
            known = sum(item.label is not None for _, item in self.queries)
            of = "" if self.rate is None else f", for a false accept rate of {self.rate:g}, {self.learnt}"
            title = f"{known:,} of {len(rows):,} queries recognised within a distance of {self.threshold:.4f}{of}"
            return Table(["query", "label", "distance", "nearest"], rows, title, self._score(), align="llrl").text()
        labels = self.labels or [None] * len(self.queries)
        records = [
            {
                "query": name,
                "query_label": label,
                "label": item.label,
                "distance": item.distance if math.isfinite(item.distance) else None,
                "threshold": self.threshold,
                "id": item.nearest and item.nearest.id,
                "path": item.nearest and item.nearest.path,
                "nearest_label": item.nearest and item.nearest.label,
            }
            for (name, item), label in zip(self.queries, labels, strict=True)
        ]
        return json.dumps(without_nan(records), indent=2) if form == "json" else Table.of_records(records).text("csv")


def recognize(
    gallery: Gallery,
    *queries: str | os.PathLike[str] | Rows,
    rate: float | None = None,
    threshold: float | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> Recognitions:
    """Name what images show by the label of the nearest labelled image of a gallery, if that is near enough.

    Gallery images without a label are ignored. Of several at the same distance, the one that was added first counts.

    Args:
        gallery: The gallery to search.
        queries: Sources of `list_pictures`, or files of vectors.
        rate: The false accept rate for which the threshold must have been learnt by `calibrate`; None takes any.
        threshold: A distance to use instead of a calibrated threshold.
        batch_size: Queries that are embedded at once.
        workers: Processes that read queries.

    Returns:
        The answers, with counts if queries have labels.

    Raises:
        UserError: If no query can be read, or there is no threshold.
        ValueError: If `threshold` is not a distance, or `rate` is not between 0 and 1.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> gallery = Gallery.create(folder / "shop", dim=2)
    >>> _ = gallery.add_vectors(np.eye(2), ["shoe.jpg", "hat.jpg"], ["shoe", "hat"])
    >>> np.save(folder / "new.npy", np.array([[0.1, 0.9], [-0.6, 0.8]]))
    >>> [answer.label for _, answer in recognize(gallery, folder / "new.npy", threshold=0.1).queries]
    ['hat', None]
    """
    chosen = gallery.settle_threshold(rate, threshold)
    embedded = embed_queries(gallery, *queries, batch_size=batch_size, workers=workers)
    assert embedded.embeddings is not None
    found = gallery.recognize_vectors(embedded.embeddings, chosen.threshold)
    labels = embedded.labels
    labelled = any(label is not None for label in labels)
    return Recognitions(
        gallery.store.address,
        chosen.threshold,
        chosen.rate,
        [*zip(embedded.names, found, strict=True)],
        dict(embedded.unreadable),
        (*chosen.notes, *chosen.advice),
        labels,
        frozenset(filter(None, gallery.store.count_labels())) if labelled else frozenset(),
        chosen.learnt,
    )
