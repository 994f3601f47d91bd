"""Evaluate files of embeddings that were made elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proxemic.data import RowGroups
from proxemic.data.embeddings import LabelledEmbeddings, RowLabels, read_embeddings
from proxemic.data.sources import join_query_gallery
from proxemic.data.tables import NOTE_COLUMNS, unused_columns
from proxemic.errors import UserError
from proxemic.protocols.runs.evaluation.rows import TargetMetrics, evaluate_rows
from proxemic.recipes.reader import read_evaluation_config


def evaluate_files(
    paths: Sequence[Path],
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    *,
    by_category: bool,
    overrides: Mapping[str, object],
    report: Callable[[str], object],
) -> list[TargetMetrics]:
    """Evaluate each file by its labels.

    Raises:
        UserError: If a file cannot be read, or two are not of the same rows.
    """
    if gallery_labels is not None and gallery is None:
        raise UserError("--gallery-labels is given without --gallery: give the embeddings that it labels.")
    if gallery is not None and len(paths) > 1:
        raise UserError("--gallery holds embeddings of one model: judge the two one by one.")
    config = read_evaluation_config(overrides)
    contents = [read_embeddings(path, labels) for path in paths]
    if gallery is not None:
        contents = [join_query_gallery(contents[0], read_embeddings(gallery, gallery_labels))]
    if len(contents) > 1:
        _check_same_rows(paths, *contents)
    for file in (labels, gallery_labels):
        if file is not None and file.suffix.lower() != ".npy" and (unused := unused_columns(file, NOTE_COLUMNS)):
            report(f"{file} has columns that are not used: {', '.join(unused)}.")
    targets = [evaluate_rows(path, "all", content, config) for path, content in zip(paths, contents, strict=True)]
    return [target.with_categories() for target in targets] if by_category else targets


def _check_same_rows(paths: Sequence[Path], first: LabelledEmbeddings, second: LabelledEmbeddings) -> None:
    for name, one, other in (
        ("number of rows", len(first.embeddings), len(second.embeddings)),
        ("paths", first.rows.paths, second.rows.paths),
        ("labels", _class_names(first.rows), _class_names(second.rows)),
        ("is_query or is_gallery", _roles(first), _roles(second)),
        ("sequence", _texts(first.rows.sequences), _texts(second.rows.sequences)),
        ("category", _texts(first.rows.categories), _texts(second.rows.categories)),
    ):
        if one is not None and other is not None and one != other:
            raise UserError(
                f"{paths[0]} and {paths[1]} differ in {name}, but two models are compared on the same queries, row by "
                "row."
            )


def _class_names(rows: RowLabels) -> list[str] | None:
    if rows.labels is None or rows.class_names is None:
        return None
    return [rows.class_names[label] for label in rows.labels.tolist()]


def _texts(groups: RowGroups | None) -> tuple[str | None, ...] | None:
    return None if groups is None else groups.texts()


def _roles(content: LabelledEmbeddings) -> list[list[bool]]:
    """Whether each row is a query, and whether it is in the gallery; by default all are both."""
    everyone = [True] * len(content.embeddings)
    return [everyone if role is None else role.tolist() for role in (content.rows.is_query, content.rows.is_gallery)]
