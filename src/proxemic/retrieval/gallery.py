"""Galleries: pictures that are searched by the vectors that a model makes of them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from proxemic.data.embeddings import LabelledEmbeddings, read_embeddings
from proxemic.errors import UserError
from proxemic.metrics.arrays import as_tensor
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.embedding import embed_pictures
from proxemic.retrieval.items import Where, make_items
from proxemic.retrieval.pictures import Pictures, list_pictures
from proxemic.retrieval.preparing import Picture
from proxemic.retrieval.stores import GalleryInfo, IndexKind, Neighbours, Store, create_store, open_store

Source = str | os.PathLike[str] | Pictures | Sequence[str | os.PathLike[str]]
"""What `list_pictures` takes, one or several; or a file of vectors."""

VECTOR_FILES = (".npy", ".safetensors")
_AT_ONCE = 65_536  # rows that are handed to a store


@dataclass(frozen=True)
class Hit:
    """A picture of the gallery that was found.

    Args:
        id: Its number in the gallery.
        path: Its path, or another name that it was added by.
        label: Its label, or None.
        distance: To the query: 1 - cos, in [0, 2], or Euclidean.
        columns: What else is known of it.
    """

    id: int
    path: str
    label: str | None
    distance: float
    columns: Mapping[str, str | None]


@dataclass(frozen=True)
class Added:
    """What came of an addition: rows added, names that were there already, and why pictures cannot be read."""

    rows: int
    known: int
    unreadable: Mapping[str, str]


class Gallery:
    """Pictures that are searched by the vectors that a model makes of them, in a store.

    Args:
        store: Where they are.
        embedder: What makes vectors of queries and of new pictures; None loads that which the gallery was created with,
            when it is needed.

    Raises:
        UserError: If the embedder is not that of the gallery.

    >>> import tempfile
    >>> gallery = Gallery.create(Path(tempfile.mkdtemp()) / "shop", dim=2)
    >>> gallery.add_vectors([[1.0, 0.0], [0.0, 1.0]], ["shoe.jpg", "hat.jpg"], ["shoe", "hat"]).rows
    2
    >>> [(hit.path, round(hit.distance, 2)) for hit in gallery.search_vectors([[3.0, 0.1]], k=1)[0]]
    [('shoe.jpg', 0.0)]
    """

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self.store = store
        if embedder is not None:
            self.embedder = _checked(embedder, store)

    @classmethod
    def create(
        cls,
        address: str | os.PathLike[str],
        embedder: Embedder | str | os.PathLike[str] | None = None,
        source: Source | None = None,
        *,
        dim: int | None = None,
        distance: str | None = None,
        **adding: Any,
    ) -> Self:
        """Make a gallery, and add pictures or vectors to it.

        Args:
            address: Where: a new or empty folder, ``postgresql://…``, ``milvus://…`` or ``milvus-lite:FILE``, see
                `open_store`.
            embedder: What makes the vectors, or the path of such a model; None where vectors are given.
            source: What is added at once, as by `add`; None begins with none.
            dim: Numbers of a vector, where neither the embedder nor a file of vectors says so.
            distance: ``cosine`` or ``euclidean``; None takes the embedder's, or else cosine.
            adding: Arguments of `add`.

        Raises:
            UserError: If there is a gallery, the source cannot be read, or the store cannot be reached.
            ValueError: If nothing says how long vectors are.
        """
        embedder = Embedder.load(embedder) if isinstance(embedder, str | os.PathLike) else embedder
        given = _read_source(source)
        if dim is None and embedder is None and not isinstance(given, LabelledEmbeddings):
            raise UserError("Nothing says how vectors are made: give a model (--model), or a file of vectors.")
        if dim is None:
            dim = embedder.dim if embedder is not None else _of_vectors(given).embeddings.shape[1]
        chosen: Any = distance or (embedder.distance if embedder is not None else "cosine")
        info = GalleryInfo(
            dim,
            chosen,
            None if embedder is None else embedder.checksum,
            None if embedder is None or embedder.path is None else str(embedder.path),
        )
        gallery = cls(create_store(os.fspath(address), info), embedder)
        if given is not None:
            gallery.add(given, **adding)
        return gallery

    @classmethod
    def open(cls, address: str | os.PathLike[str], embedder: Embedder | str | os.PathLike[str] | None = None) -> Self:
        """Open a gallery; see `open_store`. With an embedder, or the path of one, that must be the gallery's."""
        store = open_store(os.fspath(address))
        return cls(store, Embedder.load(embedder) if isinstance(embedder, str | os.PathLike) else embedder)

    @cached_property
    def embedder(self) -> Embedder:
        """What makes the vectors; `UserError` where it is not known, or no longer where it was."""
        info = self.store.info
        if info.model is None:
            raise UserError(
                f"{self.store.address} does not know the model of its vectors: give it (--model), or search by vectors."
            )
        if not Path(info.model).exists():
            raise UserError(
                f"{info.model}, the model of {self.store.address}, is not there: say where it is (--model)."
            )
        return _checked(Embedder.load(info.model), self.store)

    def __len__(self) -> int:
        return len(self.store)

    def add(
        self,
        source: Source | LabelledEmbeddings,
        *,
        batch_size: int = 64,
        workers: int = 0,
        labels: bool = True,
        report: Callable[[str], object] = print,
    ) -> Added:
        """Embed pictures and add them, or add vectors; names that the gallery has are left as they are.

        Args:
            source: What `list_pictures` takes, one or several; or a file of vectors, or its content.
            batch_size: Pictures that the network sees at once.
            workers: Processes that read pictures.
            labels: Whether names of folders, and a column `label`, are the labels.
            report: Is told what the user should know.

        Raises:
            UserError: If the source cannot be read, or not all could be written; it says what was.
            ValueError: If vectors are not finite, or of another length.
        """
        given = source if isinstance(source, LabelledEmbeddings) else _read_source(source)
        if isinstance(given, LabelledEmbeddings):
            return self._add_rows(given)
        assert given is not None
        names = [absolute(name) for name in given.names]
        known = self.store.known_paths(names)
        new = [place for place, name in enumerate(names) if name not in known]
        pictures = given.select(new)
        embedded = embed_pictures(self.embedder, pictures, batch_size=batch_size, workers=workers)
        kept = pictures.select(embedded.places)
        items = make_items(
            [absolute(name) for name in kept.names],
            kept.labels if labels else None,
            kept.columns,
        )
        vectors = self._checked_vectors(embedded.embeddings)
        for first in range(0, len(items), _AT_ONCE):
            self.store.add(vectors[first : first + _AT_ONCE], items[first : first + _AT_ONCE])
        unreadable = {pictures.names[place]: why for place, why in embedded.unreadable.items()}
        return Added(len(items), len(known), unreadable)

    def _add_rows(self, content: LabelledEmbeddings) -> Added:
        rows = content.rows
        first = 0 if rows.paths is not None else len(self)
        paths = rows.paths or [f"row {first + place}" for place in range(len(content.embeddings))]
        return self.add_vectors(content.embeddings, paths, rows.label_texts())

    def add_vectors(
        self,
        vectors: Float[Tensor, "rows dim"] | np.ndarray | Sequence[Sequence[float]],
        paths: Sequence[str],
        labels: Sequence[str | None] | None = None,
        columns: Mapping[str, Sequence[str | None]] | None = None,
    ) -> Added:
        """Add vectors by the names of their rows, of which those that the gallery has are left as they are.

        Raises:
            ValueError: If vectors are not finite or of another length, a name comes twice, or lengths differ.
        """
        items, checked = make_items(paths, labels, columns), self._checked_vectors(vectors)
        if len(items) != len(checked):
            raise ValueError(f"there are {len(checked):,} vectors, but {len(items):,} paths: give one for each.")
        if len(set(paths)) < len(paths):
            raise ValueError("a path comes twice, but each row is known by its own: leave out one of the two.")
        known = self.store.known_paths(paths)
        new = np.array([place for place, path in enumerate(paths) if path not in known], np.int64)
        for part in np.split(new, range(_AT_ONCE, len(new), _AT_ONCE)):
            self.store.add(checked[part], items.take(part))
        return Added(len(new), len(known), {})

    def remove(self, where: Where) -> int:
        """Remove the rows that meet all conditions, at least one, and give their number."""
        if not where:
            raise UserError("Nothing says which rows to remove: give a condition, such as label=shoe.")
        return self.store.remove(where)

    def search(
        self,
        queries: Picture | Sequence[Picture],
        k: int = 10,
        where: Where | None = None,
        *,
        batch_size: int = 64,
        workers: int = 0,
    ) -> list[list[Hit]]:
        """Find the k nearest pictures to each query, of those that meet the conditions, nearest first.

        Args:
            queries: One or several pictures, as `Embedder.embed` takes them.
            k: Hits of each, 1 or more; a gallery of fewer gives fewer.
            where: Values that columns must have, all of them; of several values for a column one is enough.
            batch_size: Queries that are embedded at once.
            workers: Processes that read them.

        Returns:
            Of each query its hits; of one query, a list of one.

        Raises:
            UnreadableImageError: If a query cannot be read.
            ValueError: If k is out of range, or there is no such column.
        """
        return self.search_vectors(self.embedder.embed(queries, batch_size=batch_size, workers=workers), k, where)

    def search_vectors(
        self,
        queries: Float[Tensor, "queries dim"] | np.ndarray | Sequence[Sequence[float]],
        k: int = 10,
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """Find the k nearest rows to each vector, as `search`."""
        return self.hits(self.neighbours(queries, k, where))

    def neighbours(
        self,
        queries: Float[Tensor, "queries dim"] | np.ndarray | Sequence[Sequence[float]],
        k: int = 10,
        where: Where | None = None,
    ) -> Neighbours:
        """Distances and ids ``[queries, k]`` of the nearest rows; infinity and -1 where there are fewer."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k is {k!r}, but must be a whole number of 1 or more.")
        return self.store.search(self._checked_vectors(queries), k, where)

    def hits(self, neighbours: Neighbours) -> list[list[Hit]]:
        """What is known of the rows that were found."""
        found = neighbours.ids >= 0
        table = self.store.items(neighbours.ids[found])
        further = [name for name in table.column_names if name not in ("id", "path", "label")]
        rows: Iterator[dict[str, Any]] = iter(table.to_pylist())
        return [
            [
                Hit(row["id"], row["path"], row["label"], float(distance), {name: row[name] for name in further})
                for distance, row in zip(distances[there], rows, strict=False)
            ]
            for distances, there in zip(neighbours.distances, found, strict=True)
        ]

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        """Make an index; see `Store.build_index`."""
        self.store.build_index(kind, **settings)

    def verify(self) -> list[str]:
        """Read all of the gallery, and say what is damaged, one sentence each."""
        return self.store.verify()

    def close(self) -> None:
        """Give back connections and files."""
        self.store.close()

    def _checked_vectors(self, vectors: Any) -> Float32[np.ndarray, "rows dim"]:
        """Finite float32 vectors of the gallery's length, of unit length where it is searched by cosine."""
        tensor = as_tensor("vectors", vectors).detach().cpu()
        info = self.store.info
        if tensor.ndim != 2 or tensor.shape[1] != info.dim or not tensor.is_floating_point():
            raise ValueError(
                f"vectors are {str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}, but those of "
                f"{self.store.address} are floats [rows, {info.dim}]."
            )
        numbers = tensor.float()
        if not numbers.isfinite().all():
            row = int((~numbers.isfinite().all(1)).nonzero()[0])
            raise ValueError(f"vector {row} has a number that is not finite: leave it out, or make it anew.")
        if info.distance == "cosine":
            # In float64: a length whose square is too large for float32 is none that should be lost.
            numbers = torch.nn.functional.normalize(numbers.double(), dim=1).float()
        return numbers.contiguous().numpy()


def _checked(embedder: Embedder, store: Store) -> Embedder:
    made_by = store.info.embedder
    if made_by is not None and embedder.checksum != made_by:
        raise UserError(
            f"{embedder.path or 'The model'} (checksum {embedder.checksum[:12]}) is not the model of {store.address} "
            f"({made_by[:12]}), whose vectors mean nothing to it: give that one, or make a gallery anew."
        )
    return embedder


def _read_source(source: Source | None) -> Pictures | LabelledEmbeddings | None:
    if source is None or isinstance(source, Pictures):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.suffix.lower() in VECTOR_FILES or _has_vectors(path):
            return read_embeddings(path)
        return list_pictures(source)
    return list_pictures(*source)


def _has_vectors(path: Path) -> bool:
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    import pyarrow.parquet

    try:
        return "embedding" in pyarrow.parquet.read_schema(path).names
    except pyarrow.ArrowException:
        return False  # what reads it says so


def _of_vectors(given: Pictures | LabelledEmbeddings | None) -> LabelledEmbeddings:
    assert isinstance(given, LabelledEmbeddings)
    return given


def absolute(name: str) -> str:
    """A path from the root; an address of another kind as it is."""
    return name if "://" in name else str(Path(name).absolute())
