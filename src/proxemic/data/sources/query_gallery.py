"""Queries from one place that search a gallery in another."""

from collections.abc import Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from proxemic.data.embeddings.files import LabelledEmbeddings, rows_of_images
from proxemic.data.images import ImageSet
from proxemic.data.rows import RowGroups, RowLabels, check_distinct, number_labels
from proxemic.data.sources.image_folder import image_set, read_images
from proxemic.data.sources.own_source import anything_to_find
from proxemic.data.sources.own_vectors import OwnVectors
from proxemic.data.tables import IMAGE_COLUMNS
from proxemic.data.vectors import JoinedVectors, Vectors

_NOTHING = (
    "No {kind} of {query} has another one of its class in {gallery}: their class names, compared as text, must be the "
    "same."
)


def load_query_gallery(query: Path, gallery: Path, *, strict: bool = False) -> tuple[ImageSet, tuple[str, ...]]:
    """Read queries and a gallery of images as one set, with notes as in `Splits`.

    Classes, sequences and categories are matched by name. A file that is in both places, with the same box if it has
    one, is one image, which does not find itself.

    Args:
        query: A folder of class folders or a table, as `OwnImages` reads.
        gallery: Likewise. Columns of splits and flags, and folders of splits, are ignored.
        strict: Refuse unreadable images.

    Raises:
        ValueError: If nothing can be read, no query has another image of its class in the gallery, or a file has
            several classes.
    """
    used = [column for column in IMAGE_COLUMNS if column not in ("split", "is_query", "is_gallery")]
    asked, asked_notes = read_images(query, strict, used)
    searched, searched_notes = read_images(gallery, strict, used)
    files, places = ([row.picture for row in rows] for rows in (asked, searched))
    _check_shared(files, [row.label for row in asked], places, [row.label for row in searched])
    known, searchable = set(files), set(places)
    rows = [replace(row, is_query=True, is_gallery=file in searchable) for row, file in zip(asked, files, strict=True)]
    new = [row for row, place in zip(searched, places, strict=True) if place not in known]
    rows += [replace(row, is_query=False, is_gallery=True) for row in new]
    images = image_set(rows)
    if not anything_to_find(images):
        raise ValueError(_NOTHING.format(kind="image", query=query, gallery=gallery))
    return images, (*asked_notes, *searched_notes)


def join_query_gallery(query: LabelledEmbeddings, gallery: LabelledEmbeddings) -> LabelledEmbeddings:
    """Join the embeddings of queries and of a gallery, as rows of one set.

    Classes are matched by name. A row of the gallery whose path is that of a query is the query itself.

    Raises:
        ValueError: If one of the two has no labels or has a path twice, they differ in dimension, or a path of both
            has two labels.

    >>> query = LabelledEmbeddings(torch.zeros(1, 2), number_labels(["owl"]))
    >>> gallery = LabelledEmbeddings(torch.ones(2, 2), number_labels(["jay", "jay"]))
    >>> joined = join_query_gallery(query, gallery)
    >>> joined.rows.labels.tolist(), joined.rows.class_names, joined.rows.is_query.tolist()
    ([1, 0, 0], ('jay', 'owl'), [True, False, False])
    """
    _check_dims(query.embeddings.shape[1], gallery.embeddings.shape[1])
    rows, new = _join_rows(query.rows, gallery.rows)
    return LabelledEmbeddings(torch.cat([query.embeddings, gallery.embeddings[new]]), rows)


def load_query_gallery_vectors(query: OwnVectors, gallery: OwnVectors) -> tuple[ImageSet, tuple[str, ...]]:
    """Read the vectors of queries and of a gallery as one set, with notes as in `Splits`.

    Classes, sequences and categories are matched by name. A vector of the gallery whose path is that of a query is the
    query itself. Splits and flags are ignored.

    Args:
        query: A file of vectors, with its labels.
        gallery: Likewise.

    Raises:
        ValueError: If one of the two cannot be read, has no labels or has a path twice, they differ in dimension, a
            path of both has two labels, or no query has anything to find.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, rows in (("q", 1), ("g", 2)):
    ...     np.save(folder / f"{name}.npy", np.ones((rows, 4)))
    ...     np.save(folder / f"{name}-labels.npy", np.zeros(rows, int))
    >>> query, gallery = (OwnVectors(folder / f"{name}.npy", labels=folder / f"{name}-labels.npy") for name in "qg")
    >>> images, _ = load_query_gallery_vectors(query, gallery)
    >>> images.pixels.dim, images.is_query.tolist(), images.is_gallery.tolist()
    (4, [True, False, False], [False, True, True])
    """
    asked, searched = query.read_rows(), gallery.read_rows()
    first, second = asked.images.pixels, searched.images.pixels
    assert isinstance(first, Vectors)
    assert isinstance(second, Vectors)
    _check_dims(first.dim, second.dim)
    rows, new = _join_rows(rows_of_images(asked.images), rows_of_images(searched.images))
    assert rows.labels is not None
    assert rows.class_names is not None
    vectors = Vectors(
        JoinedVectors(first, second.select(new.numpy())),
        names=None if rows.paths is None else np.array(rows.paths, np.dtypes.StringDType()),
        made_by=" and ".join(sorted({each for each in (first.made_by, second.made_by) if each})) or None,
    )
    images = ImageSet(
        vectors,
        rows.labels,
        rows.class_names,
        rows.is_query,
        rows.is_gallery,
        sequences=rows.sequences,
        categories=rows.categories,
    )
    if not anything_to_find(images):
        raise ValueError(_NOTHING.format(kind="vector", query=query.root, gallery=gallery.root))
    return images, (*asked.notes, *searched.notes)


def _check_dims(query: int, gallery: int) -> None:
    if query != gallery:
        raise ValueError(f"the queries have {query} dimensions but the gallery {gallery}: embed both with one model.")


def _join_rows(query: RowLabels, gallery: RowLabels) -> tuple[RowLabels, Int64[Tensor, " new"]]:
    """Join the rows of queries and of a gallery, but those of the gallery that are queries; the others are `new`."""
    asked, searched = _names("the queries", query), _names("the gallery", gallery)
    paths, count = None, len(asked)
    itself = [-1] * len(searched)  # which query each row of the gallery is
    if query.paths is not None and gallery.paths is not None:
        query_paths, gallery_paths = ([normpath(path) for path in rows.paths or ()] for rows in (query, gallery))
        check_distinct(query_paths, "the queries")
        check_distinct(gallery_paths, "the gallery")
        _check_shared(query_paths, asked, gallery_paths, searched)
        place_of = {path: place for place, path in enumerate(query_paths)}
        itself = [place_of.get(path, -1) for path in gallery_paths]
        paths = (*query_paths, *(path for path in gallery_paths if path not in place_of))
    new = torch.tensor([row for row, place in enumerate(itself) if place < 0], dtype=torch.int64)
    added = gallery.take(new)
    is_query = torch.arange(count + len(new)) < count
    is_gallery = ~is_query
    is_gallery[[place for place in itself if place >= 0]] = True
    rows = replace(
        number_labels(asked + [searched[row] for row in new.tolist()]),
        sequences=_join(query.sequences, count, added.sequences, len(new)),
        categories=_join(query.categories, count, added.categories, len(new)),
        paths=paths,
        is_query=is_query,
        is_gallery=is_gallery,
    )
    return rows, new


def _join(query: RowGroups | None, count: int, added: RowGroups | None, count_added: int) -> RowGroups | None:
    asked = (None,) * count if query is None else query.texts()
    return RowGroups.from_names([*asked, *((None,) * count_added if added is None else added.texts())])


def _check_shared(
    query_paths: Sequence[str], query_names: Sequence[str], gallery_paths: Sequence[str], gallery_names: Sequence[str]
) -> None:
    """Raise `ValueError` if a path has one label among the queries and another in the gallery."""
    label_of = dict(zip(gallery_paths, gallery_names, strict=True))
    for path, name in zip(query_paths, query_names, strict=True):
        if label_of.get(path, name) != name:
            raise ValueError(
                f"{path} is {name!r} among the queries but {label_of[path]!r} in the gallery: give it one label."
            )


def _names(of: str, rows: RowLabels) -> list[str]:
    texts = rows.label_texts()
    if texts is None or None in texts:
        have = "have no labels" if texts is None else f"have no label in row {texts.index(None) + 1:,}"
        raise ValueError(f"{of} {have}: give them with --labels FILE and --gallery-labels FILE.")
    return [text for text in texts if text is not None]
