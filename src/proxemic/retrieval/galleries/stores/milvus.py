"""A gallery in a collection of Milvus."""

import hashlib
import json
import random
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from proxemic.data.roots import merge_roots
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.retrieval.galleries.items import OWN, Where, check_where
from proxemic.retrieval.galleries.stores.milvus_server import Address, Server, in_a_sentence, leave
from proxemic.retrieval.galleries.stores.remote import BATCH, FIELDS, RemoteState, RemoteStore, Row
from proxemic.retrieval.galleries.stores.store import (
    FeatureRows,
    GalleryInfo,
    IndexKind,
    PartlyWritten,
    QueryRows,
    RowIds,
    VectorRows,
    check_settings,
)

with optional_dependency("milvus"):
    from pymilvus import DataType, MilvusClient, MilvusException


_GALLERIES = "proxemic_galleries"
_LARGEST = 32_768  # most dimensions of a vector
_FOUND = 16_384  # most rows of a search
_LISTED = 4_096  # most keys or ids in an expression
_TRIES = 5  # attempts to drop an index
_PATIENCE = 60  # seconds for a call that does not build an index
_TEXT = 65_535  # most bytes of a text
_HNSW = {"m": (16, 2, 2048), "ef_construction": (128, 1, 32_768), "ef_search": (100, 1, 32_768)}


class MilvusStore(RemoteStore):
    """A gallery in Milvus: a row of the collection `proxemic_galleries`, and a collection with the gallery's name.

    The key of a row is the digest of its path, so that paths are distinct. `cells` holds digests of each column's name
    and value, so that texts of users reach expressions as digests only. Readers are not disturbed; there may be one
    writer at a time, which the server does not check.
    """

    def __init__(self, server: Server, info: GalleryInfo) -> None:
        super().__init__(server.address.shown, info)
        self._server, self._name = server, server.address.gallery
        self._closing = weakref.finalize(self, leave, server)

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        if info.dim > _LARGEST:
            raise UserError(f"vectors have {info.dim:,} dimensions, but Milvus keeps up to {_LARGEST:,}.")
        server = _connect(address, create=True)
        store = cls(server, info)
        with in_a_sentence(store.address):
            client, name = server.client, server.address.gallery
            if client.has_collection(name):
                raise UserError(f"{store.address} holds a gallery or another collection: choose another name.")
            if not client.has_collection(_GALLERIES):
                _make_galleries(client)
            # Create the collection last: without it, there is no gallery.
            client.delete(_GALLERIES, filter=_notes_of(name), timeout=_PATIENCE)
            store._write(info, None)
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("key", DataType.VARCHAR, max_length=32, is_primary=True)
            schema.add_field("id", DataType.INT64)
            schema.add_field("path", DataType.VARCHAR, max_length=_TEXT)
            schema.add_field("label", DataType.VARCHAR, max_length=_TEXT, nullable=True)
            schema.add_field("columns", DataType.JSON)
            schema.add_field(
                "cells", DataType.ARRAY, element_type=DataType.VARCHAR, max_length=32, max_capacity=_LISTED
            )
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=info.dim)
            if info.features is not None:
                schema.add_field("features", DataType.FLOAT_VECTOR, dim=info.features)
            client.create_collection(name, schema=schema, consistency_level="Strong")
            store._load(empty=True)
        return store

    @classmethod
    def open(cls, address: str) -> Self:
        server = _connect(address, create=False)
        shown, name = server.address.shown, server.address.gallery
        try:
            with in_a_sentence(shown):
                if not (server.client.has_collection(_GALLERIES) and server.client.has_collection(name)):
                    raise UserError(f"{shown} holds no gallery: create it, or correct the name.")
                server.client.load_collection(_GALLERIES)
                store = cls(server, _read(server)[0])
                store._load()
        except UserError:
            server.close()
            raise
        return store

    @classmethod
    def delete(cls, address: str) -> None:
        store = cls.open(address)
        try:
            with in_a_sentence(store.address):
                # Without its collection, there is no gallery: a remaining state is overwritten.
                store._client.drop_collection(store._name, timeout=_PATIENCE)
                store._client.delete(_GALLERIES, filter=_notes_of(store._name), timeout=_PATIENCE)
        finally:
            store.close()

    @property
    def _client(self) -> Any:
        return self._server.client

    def _load(self, *, empty: bool = False) -> None:
        """Create missing indexes and load the collection; waiting for an index takes half a second or more."""
        made = self._client.list_indexes(self._name)
        wanted = self._client.prepare_index_params()
        if "vector" not in made:
            index = self._state().index
            kind = "FLAT" if index is None else "HNSW"
            parameters = {} if index is None else {"M": index["m"], "efConstruction": index["ef_construction"]}
            # For vectors of unit length, the Euclidean order equals the cosine order.
            wanted.add_index("vector", index_type=kind, metric_type="L2", params=parameters)
        if self.info.features is not None and "features" not in made:  # Milvus wants an index of every vector field
            wanted.add_index("features", index_type="FLAT", metric_type="L2")
        for name in ("id",) if self._server.is_lite else ("id", "cells"):
            if name not in made:
                wanted.add_index(name, index_type="INVERTED")
        if len(wanted):
            self._client.create_index(self._name, wanted, sync=not empty)
        self._client.load_collection(self._name)

    def _state(self) -> RemoteState:
        return _read(self._server)[1]

    def _write(self, info: GalleryInfo, index: Mapping[str, int] | None) -> None:
        self._note({self._name: {"info": info.to_json(), "index": index}})

    def _note(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        rows = [{"name": name, "state": state, "vector": [0.0, 0.0]} for name, state in notes.items()]
        with in_a_sentence(self.address):
            self._client.upsert(_GALLERIES, rows, timeout=_PATIENCE)

    def _reserve(self, rows: int) -> int:
        """Reserve ids that no other writer gets, and return the first.

        Milvus has no transactions, but reads see all earlier writes: of two claims to the same ids, the later one sees
        the earlier, and is withdrawn. Ids of withdrawn claims and broken additions are skipped.
        """
        own = _key_of_note(self._name, uuid.uuid4().hex)
        while True:
            first = self._state().next_id
            self._note({own: {"end": first + rows}})
            with in_a_sentence(self.address):
                others = {name: note["end"] for name, note in _notes(self._server).items() if "end" in note}
                others.pop(own, None)  # a later claim may have removed it
                is_ours = all(end <= first for end in others.values())
                if dropped := [*others] if is_ours else [own]:
                    self._client.delete(_GALLERIES, ids=dropped, timeout=_PATIENCE)
            if is_ours:
                return first
            time.sleep(random.uniform(0, 0.1))

    def _query(self, condition: str, fields: Sequence[str]) -> list[Row]:
        def query() -> list[Row]:
            return [*self._client.query(self._name, filter=condition, output_fields=[*fields], timeout=_PATIENCE)]

        with in_a_sentence(self.address):
            return self._server.read(self._name, query)

    def _count(self, condition: str = "") -> int:
        return int(self._query(condition, ["count(*)"])[0]["count(*)"])

    def __len__(self) -> int:
        return self._count()

    def add_roots(self, roots: Sequence[str]) -> None:
        # Each has a note of its own, as other writers may add some at the same time.
        if roots:
            self._note({_key_of_note(self._name, "root", root): {"root": root} for root in roots})

    def keep_calibration(self, content: Mapping[str, Any]) -> None:
        self._note({_key_of_note(self._name, "calibration"): {"calibration": dict(content)}})

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        digests = [_digest(path) for path in paths]
        return {row["path"] for row in self._those("key", digests, ["path"])}

    def _those(self, field: str, values: Sequence[Any], fields: Sequence[str]) -> list[Row]:
        """Return the rows whose field has one of the values."""
        parts = [values[first : first + _LISTED] for first in range(0, len(values), _LISTED)]
        return [row for part in parts for row in self._query(f"{field} in {json.dumps([*part])}", fields)]

    def add(self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None) -> RowIds:
        if not len(vectors):
            return np.empty(0, np.int64)
        first, known = self._reserve(len(vectors)), self._state().further
        new = [name for name in items.column_names if name not in (*OWN, *known)]
        notes = {
            _key_of_note(self._name, "column", name): {"column": name, "place": [first, place]}
            for place, name in enumerate(new)
        }
        if notes:
            self._note(notes)
        ids, texts = first + np.arange(len(vectors)), items.to_pylist()
        size = max(1, BATCH // (4 * self.info.dim + 4 * (self.info.features or 0) + 512))
        for begin in range(0, len(vectors), size):
            part = slice(begin, begin + size)
            rows = [_row(*row) for row in zip(ids[part].tolist(), texts[part], vectors[part], strict=True)]
            if features is not None:
                rows = [row | {"features": some} for row, some in zip(rows, features[part], strict=True)]
            try:
                self._upsert(rows)
            except UserError as error:
                raise PartlyWritten(str(error), begin) from error
        return ids

    def _upsert(self, rows: Sequence[Row]) -> None:
        with in_a_sentence(self.address):
            self._client.upsert(self._name, [*rows], timeout=_PATIENCE)

    def set_labels(self, labels: Mapping[str, str | None]) -> int:
        fields = FIELDS if self.info.features is None else (*FIELDS, "features")
        paths, changed = [*labels], 0
        size = max(1, BATCH // (4 * self.info.dim + 4 * (self.info.features or 0) + 512))
        for begin in range(0, len(paths), size):
            rows = self._those("key", [*map(_digest, paths[begin : begin + size])], fields)
            rows = [row for row in rows if row["label"] != labels[row["path"]]]
            changed += len(rows)
            if rows:
                self._upsert([row | _texts(row["path"], labels[row["path"]], row["columns"]) for row in rows])
        return changed

    def remove(self, where: Where) -> int:
        # Without conditions, every row is removed.
        condition = self._condition(where) or "id >= 0"
        count = self._count(condition)
        if count:
            with in_a_sentence(self.address):
                self._client.delete(self._name, filter=condition, timeout=_PATIENCE)
        return count

    def _condition(self, where: Where | None) -> str:
        parts = []
        for name, values in check_where(where, self.columns if where else OWN).items():
            texts = [value for value in values if value is not None]
            either = []
            if name == "path":
                either.append(f"key in {json.dumps([*map(_digest, texts)])}")
            else:
                if texts:
                    either.append(f"array_contains_any(cells, {json.dumps([_digest(name, text) for text in texts])})")
                if None in values:
                    either.append(f"not array_contains(cells, {json.dumps(_digest(name, None))})")
            parts.append(f"({' or '.join(either)})")
        return " and ".join(parts)

    def _nearest(self, queries: QueryRows, k: int, where: Where | None) -> list[list[tuple[int, Any]]]:
        if k > _FOUND and len(self) > _FOUND:
            raise ValueError(f"k is {k:,}, but Milvus finds up to {_FOUND:,} rows of larger galleries.")
        limit, index = min(k, _FOUND), self._state().index
        search = partial(
            self._client.search,
            self._name,
            data=[*queries],
            anns_field="vector",
            limit=limit,
            filter=self._condition(where),
            output_fields=["id", "vector"],
            search_params={"params": {} if index is None else {"ef": max(index["ef_search"], limit)}},
            timeout=_PATIENCE,
        )
        with in_a_sentence(self.address):
            found = self._server.read(self._name, search)
        return [[(hit["entity"]["id"], hit["entity"]["vector"]) for hit in hits] for hits in found]

    def _rows(self, ids: Sequence[int], fields: Sequence[str]) -> list[Row]:
        return self._those("id", ids, fields)

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> RowIds:
        found: list[int] = []
        condition, end = self._condition(where), self._state().next_id
        first, size = after + 1, max(count, 1024)
        # Milvus returns rows unordered. Query a window of ids, which widens, as few rows may meet the conditions.
        while first < end and len(found) < count:
            window = f"id >= {first} and id < {first + size}" + (f" and {condition}" if condition else "")
            found += sorted(row["id"] for row in self._query(window, ["id"]))
            first, size = first + size, min(2 * size, _FOUND)
        return np.array(found[:count], np.int64)

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[VectorRows, pa.Table]]:
        state = self._state()
        for rows in self._windows(state, batch_size, FIELDS):
            yield self._split(rows, state.columns)

    def _windows(self, state: RemoteState, size: int, fields: Sequence[str]) -> Iterator[list[Row]]:
        size = max(1, min(size, _FOUND, BATCH // (4 * self.info.dim)))
        for first in range(0, state.next_id, size):
            rows = self._query(f"id >= {first} and id < {min(first + size, state.next_id)}", fields)
            if rows:
                yield sorted(rows, key=lambda row: row["id"])

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        chosen = check_settings(self.address, kind, settings, {"exact": {}, "hnsw": _HNSW})
        with in_a_sentence(self.address):
            # Write the goal first: if the index is missing, the next `open` builds it.
            self._write(self.info, chosen if kind == "hnsw" else None)
            self._drop_index()
            self._load()

    def _drop_index(self) -> None:
        for left in reversed(range(_TRIES)):
            self._client.release_collection(self._name)
            try:
                self._client.drop_index(self._name, "vector")
                break
            except MilvusException:  # a reader may have loaded the collection in between
                if not left:
                    raise

    def verify(self) -> list[str]:
        seen, wrong = Counter[int](), Counter[str]()
        state, count = self._state(), self._count()
        for rows in self._windows(state, 4096, ("key", "cells", *FIELDS)):
            for row in rows:
                should = _texts(row["path"], row["label"], row["columns"])
                is_right = row["key"] == should["key"] and sorted(row["cells"]) == sorted(should["cells"])
                wrong["keys of other values"] += not is_right
                seen[row["id"]] += 1
            norms = np.linalg.norm(np.array([row["vector"] for row in rows], np.float64), axis=1)
            wrong["numbers that are not finite"] += int((~np.isfinite(norms)).sum())
            if self.info.distance == "cosine":
                wrong["vectors not of length 1"] += int(((np.abs(norms - 1) > 1e-3) & (norms > 0)).sum())
        wrong["ids that come twice"] = seen.total() - len(seen)
        wrong["ids that were not given yet"] = count - seen.total()
        return [f"{self.address} has {number:,} rows with {what}." for what, number in wrong.items() if number > 0]

    def close(self) -> None:
        if self._closing.detach():
            self._server.close()


def _connect(address: str, *, create: bool) -> Server:
    parsed = Address.parse(address)
    if parsed.gallery == _GALLERIES:
        raise UserError(f"{parsed.shown} is where the names of galleries are kept: choose another name.")
    return Server(parsed, create=create)


def _make_galleries(client: Any) -> None:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("name", DataType.VARCHAR, max_length=255, is_primary=True)
    schema.add_field("state", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # every collection must have one
    index = client.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type="L2")
    client.create_collection(_GALLERIES, schema=schema, consistency_level="Strong")
    client.create_index(_GALLERIES, index, sync=False)
    client.load_collection(_GALLERIES)


def _notes(server: Server) -> dict[str, dict[str, Any]]:
    """Read the notes on a gallery, by their keys."""
    condition = _notes_of(server.address.gallery)
    fields = ["name", "state"]
    query = partial(server.client.query, _GALLERIES, filter=condition, output_fields=fields, timeout=_PATIENCE)
    with in_a_sentence(server.address.shown):
        return {row["name"]: row["state"] for row in server.read(_GALLERIES, query)}


def _read(server: Server) -> tuple[GalleryInfo, RemoteState]:
    """Read the settings and the present state of a gallery; `UserError` if there is no gallery."""
    name, shown, notes = server.address.gallery, server.address.shown, _notes(server)
    if (main := notes.pop(name, None)) is None:
        raise UserError(f"{shown} holds no gallery: create it, or correct the name.")
    try:
        if main.keys() != {"info", "index"}:
            raise ValueError("its state is not that of this version of proxemic, so create it again")
        columns = sorted((note["place"], note["column"]) for note in notes.values() if "column" in note)
        return GalleryInfo.from_json(main["info"], shown), RemoteState(
            max((int(note["end"]) for note in notes.values() if "end" in note), default=0),
            tuple(column for _, column in columns),
            tuple(merge_roots([note["root"] for note in notes.values() if "root" in note])),
            next((note["calibration"] for note in notes.values() if "calibration" in note), None),
            main["index"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{shown} is not a gallery that can be read: {error}.") from error


def _key_of_note(gallery: str, *parts: str) -> str:
    return f"{_digest(gallery)}/{_digest(*parts)}"


def _notes_of(gallery: str) -> str:
    """Return the condition of all notes on a gallery: its own one, and those below its digest."""
    digest = _digest(gallery)
    return f'name in ["{gallery}"] or (name > "{digest}/" and name < "{digest}0")'  # 0 follows / in ASCII


def _row(number: int, texts: Mapping[str, str | None], vector: Any) -> dict[str, Any]:
    columns = {name: text for name, text in texts.items() if name not in OWN and text is not None}
    path, label = texts["path"], texts["label"]
    assert path is not None
    return {"id": number, "path": path, "vector": vector, **_texts(path, label, columns)}


def _texts(path: str, label: str | None, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a row that follow from its texts."""
    cells = columns if label is None else {"label": label, **columns}
    return {
        "key": _digest(path),
        "label": label,
        "columns": columns,
        "cells": [digest for name, text in cells.items() for digest in (_digest(name, None), _digest(name, text))],
    }


def _digest(*parts: str | None) -> str:
    """Return the digest of a path, of a column with a value, or of a column with any value (None)."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
