"""What cleaning and clustering look at: the vectors of pictures, or of a file, with what is known of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxtyping import Float32
from torch import Tensor

from proxemic.data import FilePixels
from proxemic.data.tables import SPLITS
from proxemic.errors import UserError
from proxemic.metrics.clustering import unit_rows
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.embedding import embed_pictures
from proxemic.retrieval.pictures import Pictures, list_pictures
from proxemic.retrieval.stores.store import Distance
from proxemic.retrieval.vector_rows import is_vector_file, read_vector_rows

Sources = str | os.PathLike[str] | Pictures | Sequence[str | os.PathLike[str]]
"""What `list_pictures` takes, one or several; or one file of vectors."""


@dataclass(frozen=True, eq=False)
class Material:
    """Rows with a vector each.

    Args:
        embeddings: Finite; of unit length where they are compared by cosine.
        distance: By which they are compared.
        names: What each row is known by.
        labels: The label of each, or None.
        splits: The split of each, train, validation or test, or None.
        pixels: The pictures; None where there are vectors alone.
        unreadable: Why other pictures are left out, by their names.
    """

    embeddings: Float32[Tensor, "rows dim"]
    distance: Distance
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    splits: tuple[str | None, ...]
    pixels: FilePixels | None = None
    unreadable: dict[str, str] = field(default_factory=dict)


def gather(
    sources: Sources,
    model: Embedder | str | os.PathLike[str] | None,
    *,
    batch_size: int = 64,
    workers: int = 0,
    check: Callable[[int], None] | None = None,
) -> Material:
    """Embed pictures, or read vectors, which a model of vectors, if one is given, embeds.

    `check` is given their number before anything is embedded, and may refuse it.

    Raises:
        UserError: If nothing can be read, or pictures come without a model.
        ValueError: If vectors are not finite, or a number is out of its range.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}, but must be {least} or more.")
    embedder = Embedder.load(model) if isinstance(model, str | os.PathLike) else model
    listed = _listed(sources)
    if isinstance(listed, Path):
        return _of_vectors(listed, embedder, check)
    if embedder is None:
        raise UserError("Pictures are compared by a model: give one with --model, or a file of vectors.")
    if embedder.takes_vectors and isinstance(listed.pixels, FilePixels):
        raise UserError(f"{embedder.path or 'The model'} takes vectors, not pictures: give a file of vectors.")
    if check is not None:
        check(len(listed))
    embedded = embed_pictures(embedder, listed, batch_size=batch_size, workers=workers)
    unreadable = {listed.names[place]: why for place, why in embedded.unreadable.items()}
    if not embedded.places:
        name, why = next(iter(unreadable.items()))
        raise UserError(f"None of {len(listed):,} pictures can be read; the first is {name}: {why}.")
    kept = listed.select(embedded.places)
    return Material(
        _comparable(embedded.embeddings, embedder.distance),
        embedder.distance,
        kept.names,
        kept.labels,
        _splits(kept.columns, kept.names),
        kept.pixels if isinstance(kept.pixels, FilePixels) else None,
        unreadable,
    )


def _listed(sources: Sources) -> Pictures | Path:
    if isinstance(sources, Pictures):
        return sources
    paths = [sources] if isinstance(sources, str | os.PathLike) else [*sources]
    vectors = [Path(path) for path in paths if is_vector_file(path)]
    if vectors and len(paths) > 1:
        raise UserError(f"{vectors[0]} holds vectors, of which one file is looked at: give it alone.")
    return vectors[0] if vectors else list_pictures(*paths)


def _of_vectors(path: Path, embedder: Embedder | None, check: Callable[[int], None] | None) -> Material:
    rows = read_vector_rows(path)
    if check is not None:
        check(len(rows.names))
    vectors = rows.vectors
    if embedder is not None and embedder.takes_vectors:
        vectors = embedder.embed(vectors)
    distance: Distance = "cosine" if embedder is None else embedder.distance
    return Material(
        _comparable(vectors, distance), distance, rows.names, rows.labels, _splits(rows.columns, rows.names)
    )


def _splits(columns: Mapping[str, Sequence[str | None]], names: Sequence[str]) -> tuple[str | None, ...]:
    """The split of each row that a column says, train, validation or test."""
    return tuple(
        None if text is None else SPLITS.get(text.lower()) for text in columns.get("split", [None] * len(names))
    )


def _comparable(vectors: Float32[Tensor, "rows dim"], distance: Distance) -> Float32[Tensor, "rows dim"]:
    if not vectors.isfinite().all():
        row = int((~vectors.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"vector {row} has a number that is not finite: leave it out, or make it anew.")
    return unit_rows(vectors) if distance == "cosine" else vectors.float()
