"""Join queries and a gallery from two places."""

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

_KNOWN = [column for column in IMAGE_COLUMNS if column not in ("split", "is_query", "is_gallery")]


def load_query_gallery(
    query: Path | OwnVectors, gallery: Path | OwnVectors, *, strict: bool = False
) -> tuple[ImageSet, tuple[str, ...]]:
    r"""Read queries and a gallery as one set by `join_query_gallery`, with notes as in `Splits`.

    Args:
        query: A folder of class folders or a table, as for `OwnImages`, or vectors with their labels.
        gallery: The same. Splits and flags are ignored.
        strict: Refuse unreadable images.

    Raises:
        ValueError: If nothing can be read, the two cannot be joined, or no query has another row of its class in the
            gallery.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, rows in (("q", 1), ("g", 2)):
    ...     np.save(folder / f"{name}.npy", np.ones((rows, 4)))
    ...     _ = (folder / f"{name}.csv").write_text("label\n" + "a\n" * rows)
    >>> query, gallery = (OwnVectors(folder / f"{name}.npy", labels=folder / f"{name}.csv") for name in "qg")
    >>> images, _ = load_query_gallery(query, gallery)
    >>> images.pixels.dim, images.is_query.tolist(), images.is_gallery.tolist()
    (4, [True, False, False], [False, True, True])
    """
    joined = join_query_gallery(*(_read(source, strict) for source in (query, gallery)))
    images = ImageSet.of(joined)
    if not anything_to_find(images):
        places = [source.root if isinstance(source, OwnVectors) else source for source in (query, gallery)]
        raise ValueError(
            f"No {images.kind.removesuffix('s')} of {places[0]} has another one of its class in {places[1]}: their "
            "class names, compared as text, must be the same."
        )
    return images, joined.notes


def _read(source: Path | OwnVectors, strict: bool) -> Rows:
    if isinstance(source, OwnVectors):
        return source.read_rows()
    return read_images(source, strict, _KNOWN).without("split")


def join_query_gallery(query: Rows, gallery: Rows) -> Rows:
    """Join images, vectors or embeddings of queries and of a gallery, as rows of one set.

    Classes, sequences and categories are matched by name. A gallery row with the path of a query, or with the same
    image file and box, is the query itself.

    Raises:
        ValueError: If one of the two has no labels or has a path twice, they differ in dimension, or a row has two
            labels.

    >>> query = Rows.of(torch.zeros(1, 2), label=["owl"])
    >>> gallery = Rows.of(torch.ones(2, 2), label=["jay", "jay"])
    >>> joined = join_query_gallery(query, gallery)
    >>> joined.labels, joined.texts("is_query")
    (['owl', 'jay', 'jay'], ['true', 'false', 'false'])
    """
    if isinstance(query.pixels, FilePixels):
        asked, searched = identities(query.pixels), identities(gallery.pixels)
    else:
        dims = [rows.pixels.dim if rows.embeddings is None else rows.embeddings.shape[1] for rows in (query, gallery)]
        if dims[0] != dims[1]:
            raise ValueError(
                f"the queries have {dims[0]} dimensions but the gallery {dims[1]}: embed both with one model."
            )
        (query, asked), (gallery, searched) = _named(query, gallery)
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
    in_gallery = [str(key in label_of).lower() for key in asked]
    first = query.with_texts(is_query=["true"] * len(query), is_gallery=in_gallery)
    joined = Rows.join([first, new.with_texts(is_query=["false"] * len(new), is_gallery=["true"] * len(new))])
    notes = (*query.notes, *gallery.notes)
    return replace(joined, pixels=_pixels(joined, query, new), notes=notes, precision=query.precision)


def _named(query: Rows, gallery: Rows) -> list[tuple[Rows, list[object]]]:
    """Return the rows with keys that are equal for the same path; rows without paths are all different."""
    named = query.has("path") and gallery.has("path")
    parts: list[tuple[Rows, list[object]]] = []
    for rows, source in ((query, "the queries"), (gallery, "the gallery")):
        if named:
            check_distinct(rows.names, source)
        names = [normpath(name) if name and named else None for name in rows.names]
        rows = rows.with_texts(path=names) if named else rows.without("path")
        parts.append((rows, [name or (source, row) for row, name in enumerate(names)]))
    return parts


def _pixels(joined: Rows, query: Rows, new: Rows) -> FilePixels | Vectors | None:
    first, second = query.pixels, new.pixels
    if isinstance(first, FilePixels):
        return FilePixels([*first.paths, *second.paths], [*first.boxes, *second.boxes])
    if first is None:
        return None
    names = np.array(joined.names, np.dtypes.StringDType()) if joined.has("path") else None
    made_by = " and ".join(sorted({name for name in (query.made_by, new.made_by) if name})) or None
    return Vectors(JoinedVectors(first, second), names=names, made_by=made_by)
