"""Which classes a model was trained on, and whether images may be those of its run in another place."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from proxemic.cli.evaluate.judged import Judged, judge_rows
from proxemic.data import OwnImages, Splits
from proxemic.data.embeddings import LabelledEmbeddings
from proxemic.data.sources.listing import list_images
from proxemic.training import EvaluationConfig, RunDirectory
from proxemic.training.run_directory import fingerprint

__all__ = ["find_moved", "judge_apart", "trained_classes"]


def trained_classes(targets: Sequence[Path], class_names: Sequence[str]) -> frozenset[int] | None:
    """Find the classes that any of the models was trained on, by their names.

    Returns:
        their labels, or None where it is not known of each model what it was trained on.
    """
    known = [RunDirectory(path if path.is_dir() else path.parent).read_classes() for path in targets]
    names: set[str] = set()
    for classes in known:
        if classes is None:
            return None
        names.update(classes.trained)
    return frozenset(label for label, name in enumerate(class_names) if name in names)


def judge_apart(
    judged: Judged, content: LabelledEmbeddings, seen: Collection[int] | None, config: EvaluationConfig
) -> Judged:
    """Add how the unseen classes alone are retrieved, and those trained on, where there are both.

    Each part searches itself, as if the other classes were not there.

    Args:
        judged: All classes.
        content: The embeddings, with labels.
        seen: The labels of the classes trained on; None where that is not known.
        config: How to judge.
    """
    labels = content.rows.labels
    if seen is None or labels is None:
        return judged
    is_seen = torch.isin(labels, torch.tensor(sorted(seen), dtype=torch.int64))
    query_is_seen = is_seen if content.rows.is_query is None else is_seen[content.rows.is_query]
    parts = []
    for split, rows, queries in (("unseen", ~is_seen, ~query_is_seen), ("seen", is_seen, query_is_seen)):
        if 0 < len(seen) < judged.classes and bool((queries & judged.metrics.judged).any()):
            kept = rows.nonzero().squeeze(1)
            part = LabelledEmbeddings(content.embeddings[kept], content.rows.take(kept))
            parts.append(judge_rows(judged.name, split, part, config))
    return replace(judged, trained_on=len(seen), parts=tuple(parts))


def find_moved(source: OwnImages, run: RunDirectory) -> Splits | None:
    """The splits of a run, if these may be its images in another place: its classes, with as many images of each.

    Raises:
        ValueError: If there are no images.
    """
    classes = run.read_classes()
    if classes is None or source.root is None:
        return None
    names = {*classes.train, *(classes.validation or ()), *(classes.test or ())}
    if not names <= {row.label for row in list_images(Path(source.root)).rows}:
        return None  # known without reading the images themselves
    try:
        splits = source.load()
    except ValueError:
        return None
    return splits if run.has_images(fingerprint(splits)) else None
