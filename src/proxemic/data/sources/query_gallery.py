"""Join queries and a gallery from two places."""

from collections.abc import Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path

import numpy as np

from proxemic.data.formats.tables import IMAGE_COLUMNS
from proxemic.data.images import ImageSet
from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows, check_distinct
from proxemic.data.sources.image_folder import read_images
from proxemic.data.sources.listing import identities
from proxemic.data.sources.own_source import anything_to_find
from proxemic.data.sources.own_vectors import OwnVectors
from proxemic.data.vectors import JoinedVectors, Vectors


def load_query_gallery(query: Path, gallery: Path, *, strict: bool = False) -> tuple[ImageSet, tuple[str, ...]]:
    """Read queries and a gallery of images as one set, with notes as in `Splits`.

    Classes, sequences and categories are matched by name. A file in both places, with the same box if any, is a single
    image, which does not find itself.

    Args:
        query: A folder of class folders or a table, as for `OwnImages`.
        gallery: The same. Columns of splits and flags, and folders of splits, are ignored.
        strict: Refuse unreadable images.

    Raises:
        ValueError: If nothing can be read, no query has another image of its class in the gallery, or a file has
            several classes.
    """
    known = [column for column in IMAGE_COLUMNS if column not in ("split", "is_query", "is_gallery")]
    asked, searched = (read_images(path, strict, known).without("split") for path in (query, gallery))
    joined, new = _join(asked, searched, identities(asked.pixels), identities(searched.pixels))
    first, second = asked.pixels, new.pixels
    pixels = FilePixels([*first.paths, *second.paths], [*first.boxes, *second.boxes])
    return _as_images(replace(joined, pixels=pixels), query, gallery)


def join_query_gallery(query: Rows, gallery: Rows) -> Rows:
    """Join the embeddings of queries and of a gallery, as rows of one set.

    Classes are matched by name. A row of the gallery with the path of a query is the query itself.

    Raises:
        ValueError: If one of the two has no labels or has a path twice, they differ in dimension, or a path has two
            labels.

    >>> query = Rows.of(torch.zeros(1, 2), label=["owl"])
    >>> gallery = Rows.of(torch.ones(2, 2), label=["jay", "jay"])
    >>> joined = join_query_gallery(query, gallery)
    >>> joined.labels, joined.texts("is_query")
    (['owl', 'jay', 'jay'], ['true', 'false', 'false'])
    """
    assert query.embeddings is not None
    assert gallery.embeddings is not None
    _check_dims(query.embeddings.shape[1], gallery.embeddings.shape[1])
    return replace(_join_named(query, gallery)[0], precision=query.precision)


def load_query_gallery_vectors(query: OwnVectors, gallery: OwnVectors) -> tuple[ImageSet, tuple[str, ...]]:
    r"""Read the vectors of queries and of a gallery as one set, with notes as in `Splits`.

    Classes, sequences and categories are matched by name. A vector of the gallery with the path of a query is the query
    itself. Splits and flags are ignored.

    Args:
        query: A file of vectors, with its labels.
        gallery: The same.

    Raises:
        ValueError: If one of the two cannot be read, has no labels or has a path twice, they differ in dimension, a
            path has two labels, or no query has a match.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, rows in (("q", 1), ("g", 2)):
    ...     np.save(folder / f"{name}.npy", np.ones((rows, 4)))
    ...     _ = (folder / f"{name}.csv").write_text("label\n" + "a\n" * rows)
    >>> query, gallery = (OwnVectors(folder / f"{name}.npy", labels=folder / f"{name}.csv") for name in "qg")
    >>> images, _ = load_query_gallery_vectors(query, gallery)
    >>> images.pixels.dim, images.is_query.tolist(), images.is_gallery.tolist()
    (4, [True, False, False], [False, True, True])
    """
    asked, searched = query.read_rows(), gallery.read_rows()
    _check_dims(asked.pixels.dim, searched.pixels.dim)
    joined, new = _join_named(asked, searched)
    names = np.array(joined.names, np.dtypes.StringDType()) if joined.has("path") else None
    made_by = " and ".join(sorted({name for name in (asked.made_by, searched.made_by) if name})) or None
    vectors = Vectors(JoinedVectors(asked.pixels, new.pixels), names=names, made_by=made_by)
    return _as_images(replace(joined, pixels=vectors), query.root, gallery.root)


def _as_images(joined: Rows, query: Path | None, gallery: Path | None) -> tuple[ImageSet, tuple[str, ...]]:
    images = ImageSet.of(joined)
    if not anything_to_find(images):
        raise ValueError(
            f"No {images.kind.removesuffix('s')} of {query} has another one of its class in {gallery}: their class "
            "names, compared as text, must be the same."
        )
    return images, joined.notes


def _check_dims(query: int, gallery: int) -> None:
    if query != gallery:
        raise ValueError(f"the queries have {query} dimensions but the gallery {gallery}: embed both with one model.")


def _join_named(query: Rows, gallery: Rows) -> tuple[Rows, Rows]:
    """Join rows by their paths; rows without paths are all different."""
    if not (query.has("path") and gallery.has("path")):
        keys = [("query", row) for row in range(len(query))]
        return _join(query.without("path"), gallery.without("path"), keys, range(len(gallery)))
    parts, keys = [], []
    for rows, source in ((query, "the queries"), (gallery, "the gallery")):
        check_distinct(rows.names, source)
        names = [normpath(name) if name else None for name in rows.names]
        parts.append(rows.with_texts(path=names))
        keys.append([name or (source, row) for row, name in enumerate(names)])
    return _join(*parts, *keys)


def _join(query: Rows, gallery: Rows, asked: Sequence[object], searched: Sequence[object]) -> tuple[Rows, Rows]:
    """Join queries and a gallery by keys of their rows; a row of both is kept once.

    Returns:
        The joined rows, without their content, and the rows of the gallery that are not queries.
    """
    for of, rows in (("the queries", query), ("the gallery", gallery)):
        if None in rows.labels:
            missing = f"no label in row {rows.labels.index(None) + 1:,}" if rows.has("label") else "no labels"
            raise ValueError(f"{of} have {missing}: give them with --labels FILE and --gallery-labels FILE.")
    label_of = dict(zip(searched, gallery.labels, strict=True))
    for row, (key, label) in enumerate(zip(asked, query.labels, strict=True)):
        if label_of.get(key, label) != label:
            raise ValueError(
                f"{query.names[row]} is {label!r} among the queries but {label_of[key]!r} in the gallery: give it one "
                "label."
            )
    known = {*asked}
    new = gallery.take([row for row, key in enumerate(searched) if key not in known])
    joined = Rows.join(
        (
            query.with_texts(
                is_query=["true"] * len(query), is_gallery=[str(key in label_of).lower() for key in asked]
            ),
            new.with_texts(is_query=["false"] * len(new), is_gallery=["true"] * len(new)),
        )
    )
    return replace(joined, notes=(*query.notes, *gallery.notes)), new
