"""Add rows to a gallery: which of them are new, their vectors, and a transaction for each part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from proxemic.data.pixels import FilePixels
from proxemic.data.rows import Rows
from proxemic.data.sources.listing import absolute
from proxemic.data.stamps import stamps_of
from proxemic.errors import Interrupted, UserError
from proxemic.files import readable
from proxemic.retrieval.galleries.items import STAMP, further_columns, make_items
from proxemic.retrieval.galleries.models import as_stored, check_rows
from proxemic.retrieval.galleries.stores import Store
from proxemic.retrieval.galleries.stores.store import PartlyWritten
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import embed_rows
from proxemic.retrieval.vectors.heads import take_apart

_PICTURES_AT_ONCE = 8192  # most images that are embedded again after an addition was killed
_VECTORS_AT_ONCE = 65_536  # vectors that are added in one transaction


@dataclass(frozen=True)
class Added:
    """Result of an addition.

    Args:
        rows: Number of new rows.
        known: Number of rows whose names the gallery had already; they are unchanged.
        unreadable: Why images could not be added, by their names.
        ignored: Files in the source whose names are not those of images.
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


def add_rows(
    store: Store,
    rows: Rows,
    embedder_for: Callable[[Sequence[Rows]], Embedder | None],
    *,
    update: bool = False,
    batch_size: int = 64,
    workers: int = 0,
) -> Added:
    """Embed and add those rows whose names a gallery does not have, as `Gallery.add` does.

    `embedder_for` returns the model that must embed some rows, or None for vectors of the gallery's model.
    """
    info, address = store.info, store.address
    is_pictures, given = isinstance(rows.pixels, FilePixels), rows.names
    if is_pictures:
        stamps = [stamp and stamp[0] for stamp in stamps_of(rows.pixels)]
        rows = rows.with_texts(path=[*map(absolute, given)], **{STAMP: stamps})
    names = rows.names
    as_given = dict(zip(names, given, strict=True))  # messages name images as the user did
    if len({*names}) < len(names):
        raise ValueError("a path comes twice, but each row is known by its own: leave out one of the two.")
    before = _stamps_of(store, names)
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
    embedder, head = check_rows(new, info, address, embedder_for([new])), None
    if info.features is not None:
        if embedder is None:
            raise UserError(
                f"{address} keeps the features from which its model makes vectors, but vectors are given without: "
                "add the photos, or the vectors that its model takes."
            )
        embedder, head = take_apart(embedder)
    count, updated, unreadable = 0, 0, {**rows.unreadable}
    at_least = _PICTURES_AT_ONCE if is_pictures else _VECTORS_AT_ONCE
    there = "{} has {:,} of the {:,} new rows: proxemic gallery add goes on from there."
    try:
        parts = embed_rows(new, embedder, info.distance, at_least=at_least, batch_size=batch_size, workers=workers)
        for part in [new] if new.embeddings is not None else parts:
            unreadable |= {as_given[name]: why for name, why in part.unreadable.items()}
            if len(part):
                assert part.embeddings is not None
                vectors = as_stored(part.embeddings if head is None else head(part.embeddings), info)
                features = None if head is None else part.embeddings
                written, replaced = store.transaction(partial(_write, store, part, vectors, features, update))
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
    store: Store, part: Rows, vectors: np.ndarray, features: np.ndarray | None, update: bool
) -> tuple[list[str], list[str]]:
    """Write embedded rows that are still new or to be updated; return their names, and those of updated rows.

    While they were embedded, another process may have added, updated, relabelled or removed the same.
    """
    before = _rows_of(store, [*store.known_paths(part.names)])
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
        store.add(vectors, items, features)
    return part.names, replaced


def _stamps_of(store: Store, names: Sequence[str]) -> dict[str, str | None]:
    """Return the file stamps of the given names that the gallery has."""
    known, stamps, after = store.known_paths(names), dict[str, str | None](), -1
    if STAMP not in store.columns:
        return dict.fromkeys(known)
    if len(known) <= _PICTURES_AT_ONCE:
        return {path: row[STAMP] for path, row in _rows_of(store, [*known]).items()}
    # Reading all rows takes less time than looking up very many paths.
    while len(ids := store.next_ids(after, _PICTURES_AT_ONCE)):
        items, after = store.items(ids), int(ids[-1])
        stamps.update(zip(items["path"].to_pylist(), items[STAMP].to_pylist(), strict=True))
    return {path: stamps[path] for path in known}


def _rows_of(store: Store, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    ids = store.next_ids(count=len(paths), where={"path": paths}) if paths else np.empty(0, np.int64)
    return {row["path"]: row for row in store.items(ids).to_pylist()}


def _is_other(before: str | None, stamp: str | None) -> bool:
    """Return whether a file has changed; False if that is unknown."""
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
