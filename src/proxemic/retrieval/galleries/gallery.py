"""Galleries: pictures, searched by the vectors that a model makes from them."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from logging import getLogger
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Float32

from proxemic.addresses import is_pretrained_name
from proxemic.arrays import as_tensor
from proxemic.data.pixels import FilePixels
from proxemic.data.roots import as_root
from proxemic.data.rows import Rows, join_spellings
from proxemic.data.sources.listing import absolute, roots_of_rows
from proxemic.data.stamps import stamps_of
from proxemic.data.vectors import VectorArray, Vectors
from proxemic.errors import Interrupted, UserError, UserNote
from proxemic.files import readable
from proxemic.lazy import Tensor, is_tensor, torch
from proxemic.retrieval.galleries.items import STAMP, Where, check_columns, check_where, further_columns, make_items
from proxemic.retrieval.galleries.stores import (
    GalleryInfo,
    IndexKind,
    Neighbours,
    Store,
    create_store,
    delete_store,
    open_store,
)
from proxemic.retrieval.galleries.stores.address import check_new_folder, is_folder
from proxemic.retrieval.galleries.stores.store import PartlyWritten
from proxemic.retrieval.searching.thresholds import Calibration, ChosenThreshold, calibration_file, how_to_measure
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import (
    Source,
    embed_rows,
    gather,
    model_for,
    model_or_default,
    open_sources,
    useless_vectors,
)
from proxemic.retrieval.vectors.heads import ENOUGH_TO_WHITEN, create_with_head, take_apart
from proxemic.retrieval.vectors.preparation import Picture, check_reading
from proxemic.runs.pretrained import is_cached, kept_at, sees_only

_MORE = 16  # factor by which a search widens if the nearest neighbours have no label
_PICTURES_AT_ONCE = 8192  # most pictures that are embedded again after an addition was killed
_VECTORS_AT_ONCE = 65_536  # vectors that are added in one transaction
SAMPLE = 4096
"""Pictures from which whitening is learnt."""
_FEW = 1024  # hits below which counting the rows costs more than it saves


@dataclass(frozen=True)
class Hit:
    """A picture that a search found.

    Args:
        id: Number of its row in the gallery.
        path: Its path, or another name under which it was added.
        label: Its label, or None.
        distance: Distance to the query: 1 - cos, in [0, 2], or Euclidean.
        columns: Values of the gallery's further columns.
    """

    id: int
    path: str
    label: str | None
    distance: float
    columns: Mapping[str, str | None]


@dataclass(frozen=True)
class Recognition:
    """Answer to what one query shows.

    Args:
        label: The label of the nearest labelled picture within the threshold; None means *unknown*.
        distance: Distance to `nearest`; infinite if the gallery is empty.
        nearest: The picture that gave the label, or else the nearest picture; None if the gallery is empty.
    """

    label: str | None
    distance: float
    nearest: Hit | None


@dataclass(frozen=True)
class Added:
    """Result of an addition.

    Args:
        rows: Number of new rows.
        known: Number of rows whose names the gallery had already; they are unchanged.
        unreadable: Why pictures could not be added, by their names.
        ignored: Files in the source whose names are not those of pictures.
        changed: Number of known rows whose files have changed since they were embedded.
        updated: Number of rows that were embedded again because their files had changed.
        notes: Notes for the user about the source.
    """

    rows: int = 0
    known: int = 0
    unreadable: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    changed: int = 0
    updated: int = 0
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Added") -> "Added":
        """Add up both results."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in ("rows", "known", "changed", "updated")}
        unreadable = {**self.unreadable, **other.unreadable}
        ignored, notes = (*self.ignored, *other.ignored), (*self.notes, *other.notes)
        return Added(**counts, unreadable=unreadable, ignored=ignored, notes=notes)


class Gallery:
    """Pictures in a store, searched by the vectors that a model makes from them.

    Args:
        store: The store that holds the rows.
        embedder: The model that embeds queries and new pictures; None loads the model that created the gallery when it
            is first needed.

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
            self.embedder = _checked(embedder, store.info, store.address)

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
        """Create a gallery, and add pictures or vectors to it.

        Args:
            address: A new or empty folder, ``postgresql://…``, ``milvus://…`` or ``milvus-lite:FILE``, see
                `open_store`.
            embedder: The model, or its path or name, see `Embedder.load`. None takes EfficientNet-Lite0 with
                ImageNet's weights for pictures, and no model for vectors.
            source: Pictures or vectors to add at once, as by `add`; None adds nothing. If the source cannot be read, no
                gallery is created; if the addition stops in the middle, `add` continues it. An empty gallery of the
                same model, which a creation that was killed has left, is continued.
            dim: Numbers of a vector, if neither the embedder nor a file of vectors states them; or how many of the
                first numbers of an embedding to keep, scaled to unit length again (nested embeddings, as
                `proxemic.losses.MatryoshkaLoss` trains them).
            distance: ``cosine`` or ``euclidean``; None takes the embedder's, or cosine without an embedder.
            whiten: Whether to whiten the features of a pretrained network that is given by its name, for 500 pictures
                or more and a gallery in a folder, which then also holds the model with its whitening.
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
            raise UserError("Nothing says how vectors are made: give a model (--model), pictures, or vectors.")
        info = GalleryInfo(dim, distance or "cosine", *made)  # type: ignore[arg-type]
        for rows in given:
            check_columns(rows.columns.column_names)
            _check(rows, info, os.fspath(address), embedder)
        many = vectors is None and not nested and len(given) == 1 and len(given[0]) >= ENOUGH_TO_WHITEN
        whiten = whiten and many and info.distance == "cosine" and is_folder(os.fspath(address))
        if whiten and named is not None and embedder is not None and sees_only(named):
            return cls._create_whitened(Path(address), embedder, given[0], **adding)
        gallery = cls(_create_or_continue(os.fspath(address), info), embedder)
        if given:
            gallery.added = gallery.add(given, **adding)
        elif roots := adding.get("roots"):
            gallery.store.add_roots([*map(as_root, roots)])
        return gallery

    @classmethod
    def _create_whitened(cls, target: Path, embedder: Embedder, rows: Rows, **adding: Any) -> Self:
        """Learn whitening from a random sample of the pictures; add the sample as it is embedded, then the rest."""
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
            f"The vectors are whitened to {head.config.embedding_size} numbers, so that searches find more; {target} "
            "also holds their model (--no-whiten skips whitening)."
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
                f"{address} does not know the model of its vectors: give it (--model), or vectors instead of pictures."
            )
        if not is_pretrained_name(info.model) and not Path(info.model).exists():
            raise UserError(f"{info.model}, the model of {address}, is not there: say where it is now (--model).")
        return _checked(load_for(info.model, info), info, address)

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
        """Add pictures, which are embedded, or vectors; rows whose names the gallery has stay unchanged.

        With `update`, pictures whose files have changed since they were embedded are embedded again.
        They get new ids, and keep labels and columns that the source does not give. Changes of vectors that came from a
        file, and of pictures behind an address, are not noticed.

        Pictures are stored some thousands at a time: after an interruption, the same call continues from there. If the
        model takes vectors, it embeds the vectors of files that it has not made itself.

        Args:
            source: One or several sources of `list_pictures` or files of vectors, or their content. None only adds
                `roots`.
            batch_size: Pictures per batch of the network.
            workers: Processes that read pictures.
            labels: Whether names of folders, and a column `label`, are the labels.
            roots: Folders or addresses of further pictures: of those that files of vectors name, or new places of
                folders from which pictures were added. Pages and `proxemic serve` open no others.
            update: Whether to embed pictures again whose files have changed.

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
            added += self._add_rows(rows, update, {"batch_size": batch_size, "workers": workers})
        return added

    def _add_rows(self, rows: Rows, update: bool, reading: dict[str, Any], *, embedded: bool = False) -> Added:
        info, address = self.store.info, self.store.address
        is_pictures, given = isinstance(rows.pixels, FilePixels), rows.names
        if is_pictures:
            stamps = [stamp and stamp[0] for stamp in stamps_of(rows.pixels)]
            rows = rows.with_texts(path=[*map(absolute, given)], **{STAMP: stamps})
        names = rows.names
        as_given = dict(zip(names, given, strict=True))  # messages name pictures as the user did
        if len({*names}) < len(names):
            raise ValueError("a path comes twice, but each row is known by its own: leave out one of the two.")
        before = self._stamps_of(names)
        stamps = dict(zip(names, rows.texts(STAMP), strict=True))
        known = {*before}
        changed = {name for name, stamp in before.items() if _is_other(stamp, stamps[name])}
        chosen = [place for place, name in enumerate(names) if name not in known or (update and name in changed)]
        # A gallery may lie in its own source: do not report its files.
        own = Path(address).absolute()
        ignored = tuple(readable(path) for path in rows.ignored if own not in path.absolute().parents)
        added = Added(0, len(known), rows.unreadable, ignored, len(changed), notes=rows.notes)
        if not chosen:
            return added
        new = rows.take(chosen)
        embedder, head = None if embedded else _check(new, info, address, self.embedder_for([new])), None
        if info.features is not None:
            if embedder is None:
                raise UserError(
                    f"{address} keeps the features from which its model makes vectors, but vectors are given without: "
                    "add the pictures, or the vectors that its model takes."
                )
            embedder, head = take_apart(embedder)
        count, updated, unreadable = 0, 0, {**rows.unreadable}
        at_least = _PICTURES_AT_ONCE if is_pictures else _VECTORS_AT_ONCE
        there = "{} has {:,} of the {:,} new rows: proxemic gallery add goes on from there."
        try:
            parts = embed_rows(new, embedder, info.distance, at_least=at_least, **reading)
            for part in [new] if new.embeddings is not None else parts:
                unreadable |= {as_given[name]: why for name, why in part.unreadable.items()}
                if len(part):
                    assert part.embeddings is not None
                    vectors = as_stored(part.embeddings if head is None else head(part.embeddings), info)
                    features = None if head is None else part.embeddings
                    written, replaced = self.store.transaction(partial(self._write, part, vectors, features, update))
                    count, updated = count + len(written) - len(replaced), updated + len(replaced)
                    known = (known | {*part.names}) - {*written}
                    changed -= {*part.names}
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped. {there.format(address, count + updated, len(new))}") from None
        except UserError as error:
            done = count + updated + (error.rows if isinstance(error, PartlyWritten) else 0)
            raise UserError(f"{error} {there.format(address, done, len(new))}") from error
        facts = {"rows": count, "known": len(known), "changed": len(changed), "updated": updated}
        return replace(added, **facts, unreadable=unreadable)

    def _write(
        self, part: Rows, vectors: np.ndarray, features: np.ndarray | None, update: bool
    ) -> tuple[list[str], list[str]]:
        """Write embedded rows that are still new or to be updated; return their names, and those of updated rows.

        While they were embedded, another process may have added, updated, relabelled or removed the same.
        """
        before = self._rows_of([*self.store.known_paths(part.names)])
        stamps, names = part.texts(STAMP), part.names
        places = [
            place
            for place, name in enumerate(names)
            if name not in before or (update and _is_other(before[name].get(STAMP), stamps[place]))
        ]
        if len(places) < len(part):
            part, vectors = part.take(places), vectors[places]
            features = None if features is None else features[places]
        replaced = [name for name in part.names if name in before]
        if len(part):
            items = make_items(_keep(part, {name: before[name] for name in replaced}))
            self.store.add(vectors, items, features)
        return part.names, replaced

    def embedder_for(self, given: Sequence[Rows]) -> Embedder | None:
        """Return the model that must embed some rows; None for vectors of the gallery's model, or if it is absent."""
        if "embedder" in vars(self) or any(not isinstance(rows.pixels, Vectors) for rows in given):
            return self.embedder
        info = self.store.info
        is_needed = any(rows.made_by is None or rows.made_by != info.embedder for rows in given)
        return self.embedder if is_needed and info.model is not None and kept_at(info.model).exists() else None

    def _stamps_of(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return the file stamps of the given names that the gallery has."""
        known, stamps, after = self.store.known_paths(names), dict[str, str | None](), -1
        if STAMP not in self.store.columns:
            return dict.fromkeys(known)
        if len(known) <= _PICTURES_AT_ONCE:
            return {path: row[STAMP] for path, row in self._rows_of([*known]).items()}
        # Reading all rows takes less time than looking up very many paths.
        while len(ids := self.store.next_ids(after, _PICTURES_AT_ONCE)):
            items, after = self.store.items(ids), int(ids[-1])
            stamps.update(zip(items["path"].to_pylist(), items[STAMP].to_pylist(), strict=True))
        return {path: stamps[path] for path in known}

    def _rows_of(self, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
        ids = self.store.next_ids(count=len(paths), where={"path": paths}) if paths else np.empty(0, np.int64)
        return {row["path"]: row for row in self.store.items(ids).to_pylist()}

    def add_vectors(
        self,
        vectors: Float[Tensor, "rows dim"] | np.ndarray | Sequence[Sequence[float]],
        paths: Sequence[str],
        labels: Sequence[str | None] | None = None,
        columns: Mapping[str, Sequence[str | None]] | None = None,
    ) -> Added:
        """Add embeddings under the names of their rows; rows whose names the gallery has stay unchanged.

        Their pictures are opened only if they lie below the `roots` of `add` or `create`.

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
        return self._add_rows(replace(rows, pixels=Vectors(VectorArray(checked))), False, {}, embedded=True)

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
        """Find the k pictures nearest to each query among those that meet the conditions, nearest first.

        Args:
            queries: One or several pictures, as `Embedder.embed` takes them.
            k: Hits per query, 1 or more; fewer if fewer rows meet the conditions.
            where: Filter: the allowed values of each column; all columns must match.
            text: One or several texts, whose hits follow those of the pictures; see `Embedder.embed_texts`.
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
        """Find the k rows nearest to each vector, as `search` does for pictures."""
        return self.hits(self.neighbours(queries, k, where))

    def recognize(
        self,
        queries: Picture | Sequence[Picture],
        *,
        rate: float | None = None,
        threshold: float | None = None,
        batch_size: int = 64,
        workers: int = 0,
    ) -> list[Recognition]:
        """Name what pictures show by the nearest labelled picture, if it is near enough; see `recognize`.

        Args:
            queries: One or several pictures, as `Embedder.embed` takes them.
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
        """Name what queries show by the nearest labelled row of their vectors, within a threshold."""
        found: dict[int, Recognition] = {}
        left, k, rows = np.arange(len(vectors)), 1, len(self)
        while len(left):
            unsure = []
            for place, hits in zip(left.tolist(), self.hits(self.neighbours(vectors[left], k)), strict=True):
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
        info, address, path = self.store.info, self.store.address, self.model_path
        if (content := self.store.calibration) is not None:
            return Calibration.from_json(content, address)
        if path is None or not calibration_file(path).is_file():
            raise UserError(
                f"{address} has no threshold: learn it with proxemic calibrate --gallery {address}, or give one "
                "(--threshold)."
            )
        embedder = vars(self).get("embedder")
        calibration = Calibration.read(path, info.embedder if embedder is None else embedder.checksum)
        if calibration.distance != info.distance:
            raise UserError(
                f"The threshold of {path} is on the {calibration.distance} distance, but {address} is searched by the "
                f"{info.distance} distance: learn it with proxemic calibrate --gallery {address}, or give one "
                "(--threshold)."
            )
        return calibration

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

    def hits(self, neighbours: Neighbours) -> list[list[Hit]]:
        """Return the metadata of the neighbours of each query."""
        table = self.store.items(np.unique(neighbours.ids[neighbours.ids >= 0]))
        further = further_columns(table.column_names)
        rows: dict[int, dict[str, Any]] = {row["id"]: row for row in table.to_pylist()}
        return [
            [
                Hit(row["id"], row["path"], row["label"], distance, {name: row[name] for name in further})
                for distance, number in zip(distances, numbers, strict=True)
                # Another process may have removed a row in the meantime.
                if (row := rows.get(number)) is not None
            ]
            for distances, numbers in zip(neighbours.distances.tolist(), neighbours.ids.tolist(), strict=True)
        ]

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        """Build an index; see `Store.build_index`."""
        self.store.build_index(kind, **settings)

    def verify(self) -> list[str]:
        """Read the whole gallery, and describe each damage in a sentence."""
        return self.store.verify()

    def close(self) -> None:
        """Close connections and files."""
        self.store.close()


def _create_or_continue(address: str, info: GalleryInfo) -> Store:
    """Create a gallery, or open an empty one of the same settings, as a creation that was killed leaves it."""
    try:
        return create_store(address, info)
    except UserError:
        with suppress(UserError):
            store = open_store(address)
            if store.info == info and not len(store):
                return store
            store.close()
        raise


def _is_unfinished(folder: Path, embedder: Embedder) -> bool:
    """Return whether a folder holds an empty gallery with a model that whitens what an embedder makes."""
    try:
        store = open_store(str(folder))
    except UserError:
        return False
    info = store.info
    return (info.head, info.features, info.precision, len(store)) == ("whitened", embedder.dim, embedder.precision, 0)


def load_for(model: str | os.PathLike[str], info: GalleryInfo) -> Embedder:
    """Load the model of a gallery in the precision of its vectors."""
    return Embedder.load(model, precision="bf16-mixed" if info.precision == "bf16-mixed" else "32-true")


def _reading(adding: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of `Gallery.add` that say how pictures are read."""
    return {name: adding[name] for name in ("batch_size", "workers") if name in adding}


def _checked(embedder: Embedder, info: GalleryInfo, address: str) -> Embedder:
    embedder = embedder.as_in(info)
    if info.embedder is not None and embedder.checksum != info.embedder:
        raise UserError(
            f"{embedder.path or 'The model'} (checksum {embedder.checksum[:12]}) is not the model of {address} "
            f"({info.embedder[:12]}), which made its vectors: give that model, or create another gallery."
        )
    if info.precision not in (None, embedder.precision):
        raise UserError(
            f"{embedder.path or 'The model'} computes in {embedder.precision}, but the vectors of {address} were "
            f"computed in {info.precision}: load it with that precision."
        )
    if embedder.dim != info.dim:
        raise UserError(
            f"{embedder.path or 'The model'} makes vectors of {embedder.dim} numbers, but those of {address} have "
            f"{info.dim}: give the model that made them."
        )
    return embedder


def _check(rows: Rows, info: GalleryInfo, address: str, embedder: Embedder | None) -> Embedder | None:
    """Refuse rows that cannot be added before anything is changed; return the model that must embed them."""
    model = model_for(rows, embedder, info.embedder, address)
    if model is not None:
        return model
    if rows.pixels.dim != info.dim:
        raise ValueError(f"vectors have {rows.pixels.dim} numbers, but those of {address} have {info.dim}.")
    if rows.precision is not None and info.precision not in (None, rows.precision):
        raise UserError(
            f"The vectors were computed in {rows.precision}, but those of {address} in {info.precision}: embed the "
            f"pictures with --precision {info.precision}."
        )
    for _ in embed_rows(rows, None, info.distance):
        pass
    return None


def _is_other(before: str | None, stamp: str | None) -> bool:
    """Return whether a file has changed, as far as is known."""
    return before is not None and stamp is not None and before != stamp


def _keep(part: Rows, before: Mapping[str, Mapping[str, str | None]]) -> Rows:
    """Fill empty labels and columns of new rows from the rows that they replace."""
    if not before:
        return part
    names = dict.fromkeys(["label", *(name for row in before.values() for name in further_columns(row))])
    kept = {
        name: [text or before.get(path, {}).get(name) for path, text in zip(part.names, part.texts(name), strict=True)]
        for name in names
    }
    return part.with_texts(**kept)


def check_vectors(vectors: Any, info: GalleryInfo, address: str) -> Float32[np.ndarray, "rows dim"]:
    """Validate vectors; return them in float32, scaled to unit length if the gallery is searched by cosine."""
    if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32:
        vectors = as_tensor("vectors", vectors).detach().cpu()
    kind = str(vectors.dtype).removeprefix("torch.")
    if vectors.ndim != 2 or vectors.shape[1] != info.dim or "float" not in kind:
        raise ValueError(
            f"vectors are {kind} of shape {list(vectors.shape)}, but those of {address} are floats [rows, {info.dim}]."
        )
    numbers = vectors.float().numpy() if is_tensor(vectors) else vectors
    for row, why in useless_vectors(numbers, info.distance).items():
        raise ValueError(f"vector {row} {why}: leave it out, or compute it again.")
    return as_stored(numbers, info)


def as_stored(vectors: Float[np.ndarray, "rows dim"] | None, info: GalleryInfo) -> Float32[np.ndarray, "rows dim"]:
    """Return vectors as a gallery stores them: of unit length if it is searched by cosine."""
    assert vectors is not None
    if info.distance == "cosine":
        # In float64, as the square of a large length overflows float32.
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
        vectors = np.divide(vectors, lengths, out=np.empty_like(vectors), casting="same_kind")
    return np.ascontiguousarray(vectors, np.float32)
