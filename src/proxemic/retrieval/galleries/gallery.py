"""Galleries: images, searched by the vectors that a model makes from them."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from logging import getLogger
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from proxemic.addresses import is_pretrained_name
from proxemic.data.roots import as_root
from proxemic.data.rows import Rows, join_spellings
from proxemic.data.sources.listing import roots_of_rows
from proxemic.data.vectors import VectorArray, Vectors
from proxemic.errors import UserError, UserNote
from proxemic.lazy import Tensor, torch
from proxemic.retrieval.galleries.adding import Added, add_rows
from proxemic.retrieval.galleries.hits import Hit, Recognition, hits_of
from proxemic.retrieval.galleries.items import Where, check_columns, check_where
from proxemic.retrieval.galleries.models import check_model, check_rows, check_vectors, load_for
from proxemic.retrieval.galleries.stores import GalleryInfo, IndexKind, Neighbours, Store, delete_store, open_store
from proxemic.retrieval.galleries.stores.address import check_new_folder, create_or_continue, is_folder
from proxemic.retrieval.searching.thresholds import Calibration, ChosenThreshold, calibration_of, how_to_measure
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import Source, gather, model_or_default, open_sources
from proxemic.retrieval.vectors.heads import ENOUGH_TO_WHITEN, create_with_head
from proxemic.retrieval.vectors.preparation import Picture, check_reading
from proxemic.runs.pretrained import is_cached, kept_at, sees_only

SAMPLE = 4096
"""Images from which whitening is learnt."""
_MORE = 16  # factor by which a search widens if the nearest neighbours have no label
_FEW = 1024  # hits below which counting the rows costs more than it saves


class Gallery:
    """Images in a store, searched by the vectors that a model makes from them.

    Args:
        store: The store that holds the rows.
        embedder: The model that embeds queries and new images; None loads the model that created the gallery when it is
            first needed.

    Raises:
        UserError: If the embedder is not the gallery's model.

    >>> import tempfile
    >>> gallery = Gallery.create(Path(tempfile.mkdtemp()) / "shop", dim=2)
    >>> gallery.add_vectors([[1.0, 0.0], [0.0, 1.0]], ["shoe.jpg", "hat.jpg"], ["shoe", "hat"]).rows
    2
    >>> [(hit.path, round(hit.distance, 2)) for hit in gallery.search_vectors([[3.0, 0.1]], k=1)[0]]
    [('shoe.jpg', 0.0)]
    """

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self.store = store
        self.added = Added()
        """Result of the addition made by `create`."""
        if embedder is not None:
            self.embedder = check_model(embedder, store.info, store.address)

    @classmethod
    def create(
        cls,
        address: str | os.PathLike[str],
        embedder: Embedder | str | os.PathLike[str] | None = None,
        source: Source | None = None,
        *,
        dim: int | None = None,
        distance: str | None = None,
        whiten: bool = True,
        **adding: Any,
    ) -> Self:
        """Create a gallery, and add images or vectors to it.

        Args:
            address: A new or empty folder, ``postgresql://…``, ``milvus://…`` or ``milvus-lite:FILE``, see
                `open_store`.
            embedder: The model, or its path or name, see `Embedder.load`. None takes EfficientNet-Lite0 with ImageNet's
                weights for images, and no model for vectors.
            source: Images or vectors to add at once, as by `add`; None adds nothing. If the source cannot be read, no
                gallery is created; if the addition stops in the middle, `add` continues it. An empty gallery of the
                same model, which a creation that was killed has left, is continued.
            dim: Number of dimensions of a vector, if neither the embedder nor a file of vectors states it; or how many
                of the first dimensions of an embedding to keep, scaled to unit length again (nested embeddings, as
                `proxemic.losses.MatryoshkaLoss` trains them).
            distance: ``cosine`` or ``euclidean``; None takes the embedder's, or cosine without an embedder.
            whiten: Whether to whiten the features of a pretrained network that is given by its name, for 500 images or
                more and a gallery in a folder, which then also holds the model with its whitening.
            adding: Arguments of `add`.

        Raises:
            UserError: If the address holds a gallery, the source cannot be read, or the store cannot be reached.
            ValueError: If vectors are not finite or differ in length.
        """
        check_reading(**_reading(adding))  # before anything is written
        given, nested = [] if source is None else open_sources(source), dim is not None
        vectors = next((rows for rows in given if isinstance(rows.pixels, Vectors)), None)
        embedder = model_or_default(given, embedder, partial(warnings.warn, category=UserNote, stacklevel=3))
        named = embedder if isinstance(embedder, str) and is_pretrained_name(embedder) else None
        embedder = Embedder.load(embedder) if isinstance(embedder, str | os.PathLike) else embedder
        if embedder is not None:
            embedder = embedder if dim is None else embedder.first(dim)
            model = named or (None if embedder.path is None else str(embedder.path))
            made = (embedder.checksum, model, embedder.precision)
            dim, distance = embedder.dim, distance or embedder.distance
        elif vectors is not None:
            dim, made = dim or vectors.pixels.dim, (vectors.made_by, None, vectors.precision)
        elif dim is not None:
            made = (None, None, None)
        else:
            raise UserError("Nothing says how vectors are made: give a model (--model), photos, or vectors.")
        info = GalleryInfo(dim, distance or "cosine", *made)  # type: ignore[arg-type]
        for rows in given:
            check_columns(rows.columns.column_names)
            check_rows(rows, info, os.fspath(address), embedder)
        many = vectors is None and not nested and len(given) == 1 and len(given[0]) >= ENOUGH_TO_WHITEN
        whiten = whiten and many and info.distance == "cosine" and is_folder(os.fspath(address))
        if whiten and named is not None and embedder is not None and sees_only(named):
            return cls._create_whitened(Path(address), embedder, given[0], **adding)
        gallery = cls(create_or_continue(os.fspath(address), info), embedder)
        if given:
            gallery.added = gallery.add(given, **adding)
        elif roots := adding.get("roots"):
            gallery.store.add_roots([*map(as_root, roots)])
        return gallery

    @classmethod
    def _create_whitened(cls, target: Path, embedder: Embedder, rows: Rows, **adding: Any) -> Self:
        """Learn whitening from a random sample of the images; add the sample as it is embedded, then the rest."""
        if _is_unfinished(target, embedder):
            cls.delete(target)
        check_new_folder(target)
        order = np.random.default_rng(0).permutation(len(rows))[:SAMPLE]
        sample = gather([rows.take(np.sort(order))], embedder, **_reading(adding))
        assert sample.embeddings is not None
        from proxemic.retrieval.improving.improvement import whitened_head
        from proxemic.runs.embed import load_embedder

        head, path = whitened_head(torch.from_numpy(sample.embeddings)), embedder.path
        assert path is not None
        # The embedder itself has its batch norms folded into other weights.
        facts = (embedder.precision, embedder.checksum)
        with create_with_head(target, head, "whitened", load_embedder(path), *facts):
            pass
        gallery = cls.open(target)
        added = gallery.add([replace(sample, unreadable={}, folders=(), notes=()), rows], **adding)
        note = (
            f"The vectors are whitened to {head.config.embedding_size} dimensions, so that searches find more; "
            f"{target} also holds their model (--no-whiten skips whitening)."
        )
        gallery.added = replace(added, known=added.known - len(sample), notes=(*added.notes, note))
        return gallery

    @classmethod
    def open(cls, address: str | os.PathLike[str], embedder: Embedder | str | os.PathLike[str] | None = None) -> Self:
        """Open the gallery at an address of `open_store`; an embedder, or its path, must be the gallery's model."""
        store = open_store(os.fspath(address))
        return cls(store, load_for(embedder, store.info) if isinstance(embedder, str | os.PathLike) else embedder)

    @classmethod
    def delete(cls, address: str | os.PathLike[str]) -> None:
        """Delete a gallery for good, and its folder if that then is empty; foreign files stay.

        If the process is killed, the gallery is either whole or gone.

        Raises:
            UserError: If there is no gallery, another process writes to it, or the store cannot be reached.
        """
        delete_store(os.fspath(address))

    @cached_property
    def embedder(self) -> Embedder:
        """The model that made the gallery's vectors; `UserError` if it is unknown or has moved."""
        info, address = self.store.info, self.store.address
        if info.model is None:
            raise UserError(
                f"{address} does not know the model of its vectors: give it (--model), or vectors instead of photos."
            )
        if not is_pretrained_name(info.model) and not Path(info.model).exists():
            raise UserError(f"{info.model}, the model of {address}, is not there: say where it is now (--model).")
        return check_model(load_for(info.model, info), info, address)

    def __len__(self) -> int:
        return len(self.store)

    def add(
        self,
        source: Source | None = None,
        *,
        batch_size: int = 64,
        workers: int = 0,
        labels: bool = True,
        roots: Sequence[str | os.PathLike[str]] = (),
        update: bool = False,
    ) -> Added:
        """Add images, which are embedded, or vectors; rows whose names the gallery has stay unchanged.

        With `update`, images whose files have changed since they were embedded are embedded again. They get new ids,
        and keep labels and columns that the source does not give. Changes of vectors that came from a file, and of
        images at a URL, are not noticed.

        Images are stored some thousands at a time: after an interruption, the same call continues from there. If the
        model takes vectors, it embeds vectors in files unless it made them itself.

        Args:
            source: One or several sources of `list_pictures` or files of vectors, or their content. None only adds
                `roots`.
            batch_size: Images per batch of the network.
            workers: Processes that read images.
            labels: Whether names of folders, and a column `label`, are the labels.
            roots: Folders or URLs of further images: images that files of vectors name, or new locations of folders
                from which images were added. Pages and `proxemic serve` open no others.
            update: Whether to embed images again whose files have changed.

        Raises:
            UserError: If the source cannot be read, or not all rows could be written; the message counts those written.
            ValueError: If vectors are not finite or of another length, or a name comes twice.
        """
        given = [] if source is None else open_sources(source)
        given_roots = [*map(as_root, roots), *(root for rows in given for root in roots_of_rows(rows))]
        if not {*given_roots} <= {*self.store.roots}:
            self.store.add_roots(given_roots)
        added = Added()
        for rows in given:
            check_columns(rows.columns.column_names)
            if not labels:
                rows = rows.without("label")
            reading = {"batch_size": batch_size, "workers": workers}
            added += add_rows(self.store, rows, self.embedder_for, update=update, **reading)
        return added

    def embedder_for(self, given: Sequence[Rows]) -> Embedder | None:
        """Return the model that must embed some rows; None for vectors of the gallery's model, or if it is absent."""
        if "embedder" in vars(self) or any(not isinstance(rows.pixels, Vectors) for rows in given):
            return self.embedder
        info = self.store.info
        is_needed = any(rows.made_by is None or rows.made_by != info.embedder for rows in given)
        return self.embedder if is_needed and info.model is not None and kept_at(info.model).exists() else None

    def add_vectors(
        self,
        vectors: Float[Tensor, "rows dim"] | np.ndarray | Sequence[Sequence[float]],
        paths: Sequence[str],
        labels: Sequence[str | None] | None = None,
        columns: Mapping[str, Sequence[str | None]] | None = None,
    ) -> Added:
        """Add embeddings under the names of their rows; rows whose names the gallery has stay unchanged.

        Their images are opened only if they lie below the `roots` of `add` or `create`.

        Args:
            vectors: One vector per row, ``[rows, dim]``, finite.
            paths: Names of the rows.
            labels: Labels of the rows; None leaves them empty.
            columns: Values of further columns.

        Raises:
            UserError: If not all rows could be written; the message counts those written.
            ValueError: If vectors are not finite, have another length, or are zero although the gallery is searched by
                cosine; if a name comes twice, or the arguments differ in length.
        """
        checked = torch.from_numpy(check_vectors(vectors, self.store.info, self.store.address))
        columns = {"label": [None] * len(paths) if labels is None else labels, **(columns or {})}
        for name, values in {"vectors": checked, **columns}.items():
            if len(values) != len(paths):
                raise ValueError(f"{name} has {len(values):,} entries, but there are {len(paths):,} paths.")
        rows = join_spellings(Rows.of(**{"path": paths, **columns}), "labels and columns")
        return add_rows(self.store, replace(rows, pixels=Vectors(VectorArray(checked))), lambda _: None)

    def remove(self, where: Where) -> int:
        """Remove the rows that meet all conditions (at least one), and return their number."""
        if not where:
            raise UserError("Nothing says which rows to remove: give a condition, such as label=shoe.")
        return self.store.remove(where)

    def search(
        self,
        queries: Picture | Sequence[Picture] = (),
        k: int = 10,
        where: Where | None = None,
        *,
        text: str | Sequence[str] = (),
        batch_size: int = 64,
        workers: int = 0,
    ) -> list[list[Hit]]:
        """Find the k images nearest to each query among those that meet the conditions, nearest first.

        Args:
            queries: One or several images, as `Embedder.embed` takes them.
            k: Hits per query, 1 or more; fewer if fewer rows meet the conditions.
            where: Filter: the allowed values of each column; all columns must match.
            text: One or several texts, whose hits follow those of the images; see `Embedder.embed_texts`.
            batch_size: Queries that are embedded at once.
            workers: Processes that read queries.

        Returns:
            The hits of each query, also of a single one.

        Raises:
            UnreadableImageError: If a query cannot be read; `search_gallery` leaves these out.
            UserError: If `text` is given, but the model has no text tower.
            ValueError: If k is out of range, or `where` names an unknown column.
        """
        self.check_question(k, where)
        vectors = self.embedder.vectors(queries, batch_size=batch_size, workers=workers)
        if text:
            vectors = np.concatenate([vectors, self.embedder.embed_texts(text, batch_size=batch_size).numpy()])
        return self.search_vectors(vectors, k, where)

    def search_vectors(
        self,
        queries: Float[Tensor, "queries dim"] | np.ndarray | Sequence[Sequence[float]],
        k: int = 10,
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """Find the k rows nearest to each vector, as `search` does for images."""
        return hits_of(self.store, self.neighbours(queries, k, where))

    def recognize(
        self,
        queries: Picture | Sequence[Picture],
        *,
        rate: float | None = None,
        threshold: float | None = None,
        batch_size: int = 64,
        workers: int = 0,
    ) -> list[Recognition]:
        """Name what images show by the nearest labelled image, if it is near enough; see `recognize`.

        Args:
            queries: One or several images, as `Embedder.embed` takes them.
            rate: The false accept rate for which the threshold must have been learnt; None takes any. A caution about
                the threshold is logged.
            threshold: A distance to use instead of a calibrated threshold.
            batch_size: Queries that are embedded at once.
            workers: Processes that read queries.

        Raises:
            UnreadableImageError: If a query cannot be read; `recognize` leaves these out.
            UserError: If there is no threshold.
            ValueError: If `threshold` is not a distance.
        """
        chosen = self.settle_threshold(rate, threshold)
        for note in chosen.notes:
            getLogger("proxemic").warning(note)
        vectors = self.embedder.vectors(queries, batch_size=batch_size, workers=workers)
        return self.recognize_vectors(vectors, chosen.threshold)

    def recognize_vectors(
        self, vectors: Float[Tensor, "queries dim"] | np.ndarray, threshold: float
    ) -> list[Recognition]:
        """Name what queries show by the nearest labelled row to their vectors, within a threshold."""
        found: dict[int, Recognition] = {}
        left, k, rows = np.arange(len(vectors)), 1, len(self)
        while len(left):
            unsure = []
            for place, hits in zip(left.tolist(), self.search_vectors(vectors[left], k), strict=True):
                within = [hit for hit in hits if hit.distance <= threshold]
                named = next((hit for hit in within if hit.label is not None), None)
                if named is None and len(within) == k < rows:
                    unsure.append(place)  # all that were found are near, but have no label
                    continue
                nearest = named or (hits[0] if hits else None)
                distance = math.inf if nearest is None else nearest.distance
                found[place] = Recognition(None if named is None else named.label, distance, nearest)
            left, k = np.array(unsure, np.int64), min(rows, k * _MORE)
        return [found[place] for place in range(len(vectors))]

    def settle_threshold(self, rate: float | None, threshold: float | None) -> ChosenThreshold:
        """Return the given threshold, or the calibrated threshold of the gallery, or of its run or model."""
        if threshold is not None and rate is not None:
            raise UserError("A threshold and a false accept rate are given, which has its own: leave out one of them.")
        if threshold is not None:
            if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < math.inf:
                raise ValueError(f"threshold is {threshold!r}, but must be a distance, a number of 0 or more.")
            return ChosenThreshold(float(threshold))
        calibration = self.read_calibration()
        notes = tuple(filter(None, (calibration.check_rate(rate), caution := calibration.caution(len(self)))))
        advice = () if caution is None else (how_to_measure(self.store.address),)
        return ChosenThreshold(calibration.threshold, calibration.rate, calibration.learnt(), notes, advice)

    @property
    def model_path(self) -> Path | None:
        """The path of the gallery's model, which may be missing; None if the model is unknown or in a cache."""
        info, embedder = self.store.info, vars(self).get("embedder")  # without loading it for vectors
        path = embedder.path if embedder is not None else None if info.model is None else kept_at(info.model)
        return None if path is None or is_cached(path) else path

    def read_calibration(self) -> Calibration:
        """Return the gallery's own calibration, or else that of its run or model; raise `UserError` without any."""
        embedder = vars(self).get("embedder")
        return calibration_of(self.store, self.model_path, None if embedder is None else embedder.checksum)

    def neighbours(
        self,
        queries: Float[Tensor, "queries dim"] | np.ndarray | Sequence[Sequence[float]],
        k: int = 10,
        where: Where | None = None,
    ) -> Neighbours:
        """Find distances and ids ``[queries, k]`` of the nearest rows, filled up with infinity and -1.

        A k above 1,024 is reduced to the number of rows.
        """
        self.check_question(k, where)
        if k > _FEW:  # the result takes memory for k hits
            k = min(k, max(len(self.store), _FEW))
        return self.store.search(check_vectors(queries, self.store.info, self.store.address), k, where)

    def check_question(self, k: int, where: Where | None) -> None:
        """Validate `k` and `where` before queries are embedded."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k is {k!r}, but must be a whole number of 1 or more.")
        if where:
            check_where(where, self.store.columns)

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        """Build an index; see `Store.build_index`."""
        self.store.build_index(kind, **settings)

    def verify(self) -> list[str]:
        """Read the whole gallery, and describe each damage in a sentence."""
        return self.store.verify()

    def close(self) -> None:
        """Close connections and files."""
        self.store.close()


def _is_unfinished(folder: Path, embedder: Embedder) -> bool:
    """Return whether a folder holds an empty gallery with a model that whitens what an embedder makes."""
    try:
        store = open_store(str(folder))
    except UserError:
        return False
    info = store.info
    return (info.head, info.features, info.precision, len(store)) == ("whitened", embedder.dim, embedder.precision, 0)


def _reading(adding: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of `Gallery.add` that say how images are read."""
    return {name: adding[name] for name in ("batch_size", "workers") if name in adding}
