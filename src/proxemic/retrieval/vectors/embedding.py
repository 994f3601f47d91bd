"""Embed any source: images, which a model embeds, or vectors in files."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows
from proxemic.data.sources.listing import list_pictures, roots_of_rows
from proxemic.data.vectors import VectorArray, Vectors
from proxemic.errors import UserError
from proxemic.files import readable
from proxemic.retrieval.galleries.stores.store import Distance
from proxemic.retrieval.vectors.embedded import Embedded
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.networks import TORCH
from proxemic.runs.pretrained import DEFAULT_MODEL

if TYPE_CHECKING:
    from proxemic.data import ImageSet

Source = str | os.PathLike[str] | Rows | Sequence[str | os.PathLike[str] | Rows]
"""One or several sources of `list_pictures` or files of vectors, or their content."""

_AT_ONCE = 65_536  # vectors read at once


def open_sources(source: Source, *, missing: bool = False) -> list[Rows]:
    """Open a source: all its images together, and each file of vectors by itself.

    Vectors without a path are named by their file and number. With `missing`, paths that do not exist are listed as
    unreadable images.

    Raises:
        UserError: If a source does not exist, or has no images.
        ValueError: If a table or a file of vectors is not valid.
    """
    sources = [source] if isinstance(source, str | os.PathLike | Rows) else [*source]
    opened, others = [], []
    for item in sources:
        if isinstance(item, Rows):
            if not item.has("path"):
                raise ValueError("rows have no paths, but need them as names: give a column path.")
            opened.append(as_vectors(item))
        elif is_vector_file(item):
            from proxemic.data.embeddings import open_rows

            opened.append(_named(open_rows(Path(item), whole=True), Path(item)))
        else:
            others.append(item)
    return [list_pictures(*others, missing=missing), *opened] if others or not sources else opened


def as_vectors(rows: Rows) -> Rows:
    """Return rows with their embeddings as vectors, if they have no other content."""
    if rows.pixels is not None or rows.embeddings is None:
        return rows
    vectors = Vectors(VectorArray(rows.embeddings.detach().float().cpu()), made_by=rows.made_by)
    return replace(rows, pixels=vectors, embeddings=None)


def _named(rows: Rows, file: Path) -> Rows:
    if rows.has("path"):
        return rows
    source = readable(file.absolute())
    return rows.with_texts(path=[f"{source}, row {row}" for row in range(len(rows))])


def is_vector_file(source: str | os.PathLike[str]) -> bool:
    """Return whether a source is a file of vectors: .npy, or Parquet with a column `embedding`.

    Files of arrays in other formats count, too: `open_rows` refuses them and names the right formats.
    """
    path = Path(source)
    if path.suffix.lower() in (".npy", ".npz", ".safetensors"):
        return True
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    import pyarrow.parquet

    try:
        return "embedding" in pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError):
        return False  # reading it as a table of images reports the error


def model_or_default(
    given: Sequence[Rows], model: Embedder | str | os.PathLike[str] | None, report: Callable[[str], object]
) -> Embedder | str | os.PathLike[str] | None:
    """Return the given model; for images without one, report and return the name of the default model."""
    if model is not None or not given or any(isinstance(rows.pixels, Vectors) for rows in given):
        return model
    report(f"No model is given: {DEFAULT_MODEL} embeds the photos (--model).")
    return DEFAULT_MODEL


def open_with_model(
    source: Source, model: Embedder | str | os.PathLike[str] | None, report: Callable[[str], object]
) -> tuple[list[Rows], Embedder | None]:
    """Open a source, and load the model that is given, or the default model for images; vectors need none."""
    # First the given model: listing the source may take minutes.
    embedder = Embedder.load(model) if isinstance(model, str | os.PathLike) else model
    opened = open_sources(source)
    chosen = model_or_default(opened, embedder, report)
    return opened, Embedder.load(chosen) if isinstance(chosen, str | os.PathLike) else chosen


def model_for(rows: Rows, embedder: Embedder | None, checksum: str | None, owner: object) -> Embedder | None:
    """Return the model that must embed rows; None for vectors that the model with this checksum made already.

    Raises:
        UserError: If images come without a model or the model takes vectors, or another model made the vectors.
    """
    takes_vectors = embedder is not None and embedder.takes_vectors
    if not isinstance(rows.pixels, Vectors):
        if embedder is None:
            raise UserError("Photos are compared by a model: give one with --model, or a file of vectors.")
        if takes_vectors:
            raise UserError(f"The model of {owner} takes vectors, not photos: give a file of vectors.")
        return embedder
    if takes_vectors and (rows.made_by is None or rows.made_by != checksum):
        return embedder
    if rows.made_by is not None and checksum is not None and rows.made_by != checksum:
        raise UserError(
            f"The vectors were made by another model (checksum {rows.made_by[:12]}) than those of {owner} "
            f"({checksum[:12]}): embed the photos with that one."
        )
    return None


def how_embedded(embedder: Embedder, photos: int, named: str = "the model") -> str:
    """Say how many of some photos a model has embedded, and how many embeddings were in the user's cache."""
    count, engines = embedder.source.computed, embedder.source.computed_by
    by = named if {*engines} <= {TORCH} else f"{named} with {' and '.join(engines)}"
    return f"{count:,} photos were embedded by {by}, and {max(photos - count, 0):,} are known from before"


def report_embedded(embedder: Embedder | None, rows: Rows, report: Callable[[str], object]) -> None:
    """Report how many images of gathered rows were embedded, if they are images."""
    if embedder is not None and isinstance(rows.pixels, FilePixels):
        report(f"{how_embedded(embedder, len(rows))}.")


def embed_rows(
    rows: Rows,
    embedder: Embedder | None,
    distance: Distance,
    *,
    at_least: int = _AT_ONCE,
    batch_size: int = 64,
    workers: int = 0,
) -> Iterator[Rows]:
    """Embed rows in parts of at least `at_least` rows, so that each part can be stored when it is done.

    Without a model, the rows are vectors, which are checked and otherwise unchanged. The ``unreadable`` of a part names
    the rows that cannot be read, and those whose embedding cannot be compared.

    Raises:
        ValueError: If a vector is not finite, or is zero although the distance is cosine.
    """
    if embedder is None:
        for first in range(0, len(rows), at_least):
            places = range(first, min(first + at_least, len(rows)))
            vectors = rows.pixels.fetch(places).numpy()
            for row, why in useless_vectors(vectors, distance).items():
                raise ValueError(f"{rows.names[first + row]}: its vector {why}: leave it out, or compute it again.")
            yield replace(rows.take(places), embeddings=vectors)
        return
    names = rows.names
    parts = embedder.embed_readable(
        rows.pixels, at_least=at_least, batch_size=batch_size, workers=workers, description="embedding"
    )
    for part in parts:
        useless = useless_vectors(part.vectors, distance)
        failures = part.unreadable | {part.places[row]: f"its vector {why}" for row, why in useless.items()}
        vectors, places = part.vectors, part.places
        if useless:
            good = [row for row in range(len(places)) if row not in useless]
            vectors, places = vectors[good], [places[row] for row in good]
        taken = rows if len(places) == len(rows) else rows.take(places)
        unreadable = {names[place]: why for place, why in failures.items()}
        yield replace(taken, embeddings=vectors, unreadable=unreadable)


def gather(
    opened: Iterable[Rows],
    embedder: Embedder | None,
    distance: Distance = "cosine",
    *,
    checksum: str | None = None,
    owner: object = None,
    batch_size: int = 64,
    workers: int = 0,
) -> Rows:
    """Embed all rows of opened sources; ``unreadable`` names those that cannot be embedded.

    Without an embedder, `checksum` identifies the model of the vectors, and messages call its gallery `owner`.

    Raises:
        UserError: If nothing can be read, images come without a model, or another model made the vectors.
        ValueError: If vectors are not finite, or a number is out of its range.
    """
    if embedder is not None:
        checksum, owner = embedder.checksum, owner or embedder.path
    opened, parts = [*opened], list[Rows]()
    reading = {"batch_size": batch_size, "workers": workers}
    for rows in opened:
        model = model_for(rows, embedder, checksum, owner)
        parts += embed_rows(rows, model, distance, at_least=max(1, len(rows)), **reading)
    unreadable = {name: why for part in (*opened, *parts) for name, why in part.unreadable.items()}
    if not sum(map(len, parts)):
        name, why = next(iter(unreadable.items()))
        further = f", nor any of {len(unreadable) - 1:,} more" if len(unreadable) > 1 else ""
        raise UserError(f"{name} cannot be read as a photo ({why}){further}: give another.")
    files = [part.pixels for part in parts if isinstance(part.pixels, FilePixels)]
    pixels = None
    if len(files) == len(parts):
        pixels = FilePixels(
            [path for file in files for path in file.paths], [box for file in files for box in file.boxes]
        )
    folders = tuple(root for rows in opened for root in roots_of_rows(rows))
    notes = tuple(note for rows in opened for note in rows.notes)
    return replace(Rows.join(parts, pixels), unreadable=unreadable, folders=folders, notes=notes)


def useless_vectors(vectors: Float32[np.ndarray, "rows dim"], distance: str) -> dict[int, str]:
    """Return why vectors cannot be compared, by their rows from 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = vectors.sum(1)  # one pass over all; others only over the few rows that it makes suspect
    suspects = np.flatnonzero(~np.isfinite(sums) | (sums == 0))
    rows = vectors[suspects]
    why = dict.fromkeys(suspects[~np.isfinite(rows).all(1)].tolist(), "has a number that is not finite")
    if distance == "cosine":
        why |= dict.fromkeys(suspects[~rows.any(1)].tolist(), "is zero, which has no direction")
    return why


def embed_pictures(
    embedder: Embedder,
    pictures: "Rows | ImageSet",
    *,
    batch_size: int = 64,
    workers: int = 0,
    description: str = "embedding",
) -> Embedded:
    """Embed all readable images in order, with a progress bar on terminals.

    Args:
        embedder: The model.
        pictures: The images, or vectors for a model that is only a head.
        batch_size: Images per batch of the network, 1 or more.
        workers: Processes that read images, 0 or more.
        description: Text of the progress bar.

    Returns:
        Embeddings ``[readable, dim]`` with their places, and why other images could not be read.

    Raises:
        UserError: If the model takes vectors but images are given, or the other way round.
        ValueError: If a number is out of its range.
    """
    parts = embedder.embed_readable(
        pictures.pixels, at_least=len(pictures), batch_size=batch_size, workers=workers, description=description
    )
    return next(parts, Embedded(np.empty((0, embedder.dim), np.float32), []))
