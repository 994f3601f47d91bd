"""Queries from one place that search a gallery in another."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from proxemic.data.embeddings.files import LabelledEmbeddings
from proxemic.data.embeddings.labels import RowLabels, number_labels
from proxemic.data.images import ImageSet
from proxemic.data.row_groups import RowGroups
from proxemic.data.sources.image_folder import anything_to_find, image_set, read_images
from proxemic.data.tables import IMAGE_COLUMNS, Row


def load_query_gallery(query: Path, gallery: Path, *, strict: bool = False) -> tuple[ImageSet, tuple[str, ...]]:
    """Read queries and a gallery of images as one set, with notes as in `Splits`.

    Classes, sequences and categories go by the text of their names. A file that is in both places, with the same box if
    it has one, is one image: it does not find itself.

    Args:
        query: A folder of class folders or a table, as `OwnImages` reads.
        gallery: Likewise. What either says of splits, queries and galleries is not looked at.
        strict: Refuse unreadable images.

    Raises:
        ValueError: If nothing can be read, no query has another image of its class in the gallery, or a file that is in
            both places is named several times in one, or has another class in the other.
    """
    used = [column for column in IMAGE_COLUMNS if column not in ("split", "is_query", "is_gallery")]
    asked, asked_notes = read_images(query, strict, used)
    searched, searched_notes = read_images(gallery, strict, used)
    files, places = ([_place(row) for row in rows] for rows in (asked, searched))
    _check_shared(files, [row.label for row in asked], places, [row.label for row in searched])
    known, searchable = set(files), set(places)
    rows = [replace(row, is_query=True, is_gallery=file in searchable) for row, file in zip(asked, files, strict=True)]
    new = [row for row, place in zip(searched, places, strict=True) if place not in known]
    rows += [replace(row, is_query=False, is_gallery=True) for row in new]
    images = image_set(rows)
    if not anything_to_find(images):
        raise ValueError(
            f"No image of {query} has another one of its class in {gallery}: their class names, compared as text, "
            "must be the same."
        )
    return images, (*asked_notes, *searched_notes)


def _place(row: Row) -> str:
    return f"{row.path.resolve()}" + (f" {row.box}" if row.box else "")


def join_query_gallery(query: LabelledEmbeddings, gallery: LabelledEmbeddings) -> LabelledEmbeddings:
    """Join the embeddings of queries and of a gallery, as rows of one set.

    Classes go by the text of their names. A row of the gallery whose path is that of a query is the query itself.

    Raises:
        ValueError: If one of the two has no labels, they differ in dimension, or a path of both comes several times in
            one, or has another label in the other.

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
    asked, searched = _names("the queries", query.rows), _names("the gallery", gallery.rows)
    if None not in paths:
        _check_shared(paths[0] or (), asked, paths[1] or (), searched)
    known = {} if None in paths else {path: place for place, path in enumerate(paths[0] or ())}
    itself = [known.get(path, -1) for path in paths[1] or ()] if known else [-1] * len(gallery.embeddings)
    new = torch.tensor([place < 0 for place in itself])
    count, total = len(query.embeddings), len(query.embeddings) + int(new.sum())
    is_query = torch.arange(total) < count
    is_gallery = ~is_query
    is_gallery[[place for place in itself if place >= 0]] = True
    groups = {
        name: _join(getattr(query.rows, name), getattr(gallery.rows, name), count, new)
        for name in ("sequences", "categories")
    }
    rows = replace(
        number_labels(asked + [name for name, place in zip(searched, itself, strict=True) if place < 0]),
        **groups,
        paths=None if None in paths else (*(paths[0] or ()), *(path for path in paths[1] or () if path not in known)),
        is_query=is_query,
        is_gallery=is_gallery,
    )
    return LabelledEmbeddings(torch.cat([query.embeddings, gallery.embeddings[new]]), rows)


def _join(
    query: RowGroups | None, gallery: RowGroups | None, count: int, new: Bool[Tensor, " gallery"]
) -> RowGroups | None:
    """The groups of all queries, and then of the new rows of the gallery."""
    asked = (None,) * count if query is None else query.texts()
    searched = (None,) * int(new.sum()) if gallery is None else gallery.take(new.nonzero().squeeze(1)).texts()
    return RowGroups.from_names([*asked, *searched])


def _check_shared(
    query_paths: Sequence[str], query_names: Sequence[str], gallery_paths: Sequence[str], gallery_names: Sequence[str]
) -> None:
    """Refuse a path of both that is not one row of each, with one label: it could not be told to be the query."""
    asked = dict(zip(query_paths, query_names, strict=True))
    searched = dict(zip(gallery_paths, gallery_names, strict=True))
    counts = {"among the queries": Counter(query_paths), "in the gallery": Counter(gallery_paths)}
    for path in asked:
        if path not in searched:
            continue
        for where, count in counts.items():
            if count[path] > 1:
                raise ValueError(
                    f"{path} is a query and in the gallery, but {count[path]} times {where}: name it once in each."
                )
        if asked[path] != searched[path]:
            raise ValueError(
                f"{path} is {asked[path]!r} among the queries but {searched[path]!r} in the gallery: give it one label."
            )


def _names(of: str, rows: RowLabels) -> list[str]:
    if rows.labels is None or rows.class_names is None:
        raise ValueError(f"{of} have no labels: give them with --labels FILE and --gallery-labels FILE.")
    return [rows.class_names[label] for label in rows.labels.tolist()]
