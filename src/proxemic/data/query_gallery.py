"""Queries from one place that search a gallery in another."""

from dataclasses import replace
from pathlib import Path

import torch

from proxemic.data.embedding_files import LabelledEmbeddings
from proxemic.data.image_folder import anything_to_find, image_set, read_images
from proxemic.data.images import ImageSet
from proxemic.data.row_labels import RowLabels, number_labels

__all__ = ["join_query_gallery", "load_query_gallery"]


def load_query_gallery(query: Path, gallery: Path, *, strict: bool = False) -> tuple[ImageSet, tuple[str, ...]]:
    """Read images that ask and images that answer as one set, with notes as in `Splits`.

    Classes go by the text of their names. A file that is in both places is one image: it does not find itself.

    Args:
        query: a folder of class folders or a table, as `OwnImages` reads.
        gallery: likewise. What either says of splits, queries and galleries is not looked at.
        strict: refuse unreadable images.

    Raises:
        ValueError: nothing can be read, or no query has another image of its class in the gallery.
    """
    asked, asked_notes = read_images(query, strict)
    searched, searched_notes = read_images(gallery, strict)
    places = {row.path.resolve() for row in searched}
    rows = [replace(row, is_query=True, is_gallery=row.path.resolve() in places) for row in asked]
    known = {row.path.resolve() for row in asked}
    rows += [replace(row, is_query=False, is_gallery=True) for row in searched if row.path.resolve() not in known]
    images = image_set(rows)
    if not anything_to_find(images):
        raise ValueError(
            f"No image of {query} has another one of its class in {gallery}: their class names, compared as text, "
            "must be the same."
        )
    return images, (*asked_notes, *searched_notes)


def join_query_gallery(query: LabelledEmbeddings, gallery: LabelledEmbeddings) -> LabelledEmbeddings:
    """Put embeddings that ask and embeddings that answer together, as rows of one set.

    Classes go by the text of their names. A row of the gallery whose path is that of a query is the query itself.

    Raises:
        ValueError: one of the two has no labels, or they differ in dimension.

    >>> query = LabelledEmbeddings(torch.zeros(1, 2), number_labels(["owl"]))
    >>> gallery = LabelledEmbeddings(torch.ones(2, 2), number_labels(["jay", "jay"]))
    >>> joined = join_query_gallery(query, gallery)
    >>> joined.rows.labels.tolist(), joined.rows.class_names, joined.rows.is_query.tolist()
    ([1, 0, 0], ('jay', 'owl'), [True, False, False])
    """
    dims = [content.embeddings.shape[1] for content in (query, gallery)]
    if dims[0] != dims[1]:
        raise ValueError(f"the queries have {dims[0]} dimensions but the gallery {dims[1]}: embed both with one model.")
    paths = query.rows.paths, gallery.rows.paths
    known = {} if None in paths else {path: place for place, path in enumerate(paths[0] or ())}
    itself = [known.get(path, -1) for path in paths[1] or ()] if known else [-1] * len(gallery.embeddings)
    new = torch.tensor([place < 0 for place in itself])
    count, total = len(query.embeddings), len(query.embeddings) + int(new.sum())
    is_query = torch.arange(total) < count
    is_gallery = ~is_query
    is_gallery[[place for place in itself if place >= 0]] = True
    names = _names("the queries", query.rows) + _names("the gallery", gallery.rows, new)
    rows = replace(
        number_labels(names),
        paths=None if None in paths else (*(paths[0] or ()), *(path for path in paths[1] or () if path not in known)),
        is_query=is_query,
        is_gallery=is_gallery,
    )
    return LabelledEmbeddings(torch.cat([query.embeddings, gallery.embeddings[new]]), rows)


def _names(of: str, rows: RowLabels, kept: torch.Tensor | None = None) -> list[str]:
    if rows.labels is None or rows.class_names is None:
        raise ValueError(f"{of} have no labels: give them with --labels FILE and --gallery-labels FILE.")
    return [rows.class_names[label] for label in (rows.labels if kept is None else rows.labels[kept]).tolist()]
