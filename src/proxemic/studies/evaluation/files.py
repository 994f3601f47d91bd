"""Read files of embeddings to evaluate: one, one with a gallery, or two of the same items."""

from collections.abc import Callable, Sequence
from pathlib import Path

from proxemic.data import ImageSet, Rows
from proxemic.data.embeddings import read_embeddings
from proxemic.data.formats.tables import EMBEDDING_COLUMNS, read_table, unused_note
from proxemic.data.rows import check_distinct
from proxemic.data.sources import join_query_gallery
from proxemic.errors import UserError


def read_files(
    paths: Sequence[Path],
    *,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    report: Callable[[str], object],
) -> list[ImageSet]:
    """Read the embeddings of each file with their labels."""
    if gallery_labels is not None and gallery is None:
        raise UserError("--gallery-labels needs --gallery, the embeddings that it labels: give both.")
    if gallery is not None and len(paths) > 1:
        raise UserError("--gallery holds embeddings of one model: evaluate the two files one by one.")
    files = [read_embeddings(path, labels) for path in paths]
    for path, rows in zip(paths, files, strict=True):
        check_distinct(rows.names, path)
    if gallery is not None:
        files = [join_query_gallery(files[0], read_embeddings(gallery, gallery_labels))]
    if len(files) > 1:
        for name, one, other in zip(("number of rows", *_COMPARED), *map(_compared, files), strict=True):
            if one is None or other is None or one == other:
                continue
            raise UserError(
                f"{paths[0]} and {paths[1]} differ in {name}, but two models are compared on the same queries, "
                "row by row."
            )
    for file in filter(None, (labels, gallery_labels)):
        for note in unused_note(file, read_table(file, EMBEDDING_COLUMNS)):
            report(note)
    return [*map(ImageSet.of, files)]


_COMPARED = ("paths", "labels", "is_query or is_gallery", "sequence", "category")


def _compared(rows: Rows) -> tuple[object, ...]:
    """Return the number of rows and the values of `_COMPARED`, which must be equal for two models; None if unknown."""
    roles = [[True] * len(rows) if role is None else role.tolist() for role in rows.flags()]
    path, label, sequence, category = (
        rows.texts(name) if rows.has(name) and rows.columns[name].null_count < len(rows) else None
        for name in ("path", "label", "sequence", "category")
    )
    return len(rows), path, label, roles, sequence, category
