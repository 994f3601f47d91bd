"""A gallery in a table of PostgreSQL."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, LiteralString, Self, TypeVar, cast

import numpy as np
import pyarrow as pa

from proxemic.data.roots import merge_roots
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.retrieval.galleries.items import OWN, Where, check_where
from proxemic.retrieval.galleries.stores.postgres_server import Address, Cursor, Server, without_vectors
from proxemic.retrieval.galleries.stores.remote import FIELDS, RemoteState, RemoteStore, Row
from proxemic.retrieval.galleries.stores.store import (
    DECISIONS,
    FeatureRows,
    GalleryInfo,
    IndexKind,
    QueryRows,
    RowIds,
    VectorRows,
    check_settings,
)

with optional_dependency("postgres"):
    from pgvector import Vector
    from psycopg import errors
    from psycopg.sql import SQL, Composed, Identifier, Literal
    from psycopg.types.json import Jsonb


T = TypeVar("T")

_LARGEST, _LARGEST_HNSW = 16_000, 2_000  # most dimensions of a vector, and of a vector in an index
_INLINE = 1_500  # most dimensions of a vector that fits into a page of 8 KiB with the row's other values
_HNSW = {"m": (16, 2, 100), "ef_construction": (128, 4, 1000), "ef_search": (100, 1, 1000)}
_LOCK = 0x70726F78656D6963  # held while the table of galleries is created: two at once would fail

_GALLERIES = """
CREATE TABLE IF NOT EXISTS proxemic_galleries (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    info jsonb NOT NULL,
    next_id bigint NOT NULL DEFAULT 0,
    columns text[] NOT NULL DEFAULT '{}',
    roots text[] NOT NULL DEFAULT '{}',
    index jsonb,
    calibration jsonb
)"""
_ROWS = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY,
    path text NOT NULL UNIQUE,
    label text,
    columns jsonb NOT NULL,
    embedding vector({dim}) NOT NULL,
    features real[]
)"""


class PostgresStore(RemoteStore):
    """A gallery in PostgreSQL: a line of `proxemic_galleries`, and a table `proxemic_gallery_NUMBER` of rows.

    Names and values of users reach SQL as parameters only. Each change is a transaction that first locks the gallery's
    line: writers take turns, and readers see committed rows.
    """

    def __init__(self, server: Server, number: int, info: GalleryInfo) -> None:
        super().__init__(server.address.shown, info)
        self._server, self._number = server, number
        self._name = f"proxemic_gallery_{number}"
        self._table = Identifier(self._name)
        self._decisions = {
            "decisions": Identifier(f"proxemic_decisions_{number}"),
            "active": Identifier(f"proxemic_decisions_{number}_active"),
            "key": SQL("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
        }

    @classmethod
    def create(cls, address: str, info: GalleryInfo) -> Self:
        if info.dim > _LARGEST:
            raise UserError(
                f"vectors have {info.dim:,} dimensions, but pgvector keeps up to {_LARGEST:,}: make a gallery in a "
                "folder."
            )
        server = Server(Address.parse(address))

        def make(cursor: Cursor) -> int:
            made = cursor.execute(
                "INSERT INTO proxemic_galleries (name, info) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING "
                "RETURNING number",
                (server.address.gallery, Jsonb(info.to_json())),
            ).fetchone()
            if made is None:
                raise UserError(f"{server.address.shown} holds a gallery: add to it, or choose another name.")
            table = Identifier(f"proxemic_gallery_{made[0]}")
            cursor.execute(SQL(_ROWS).format(table=table, dim=Literal(info.dim)))
            if info.dim <= _INLINE:
                cursor.execute(SQL("ALTER TABLE {} ALTER embedding SET STORAGE PLAIN").format(table))
            return made[0]

        return cls(server, server.run(make, prepare=partial(_prepare, shown=server.address.shown)), info)

    @classmethod
    def open(cls, address: str) -> Self:
        server = Server(Address.parse(address))
        name = server.address.gallery

        def find(cursor: Cursor) -> tuple[Any, ...] | None:
            if not _has_galleries(cursor):
                return None
            return cursor.execute("SELECT number, info FROM proxemic_galleries WHERE name = %s", (name,)).fetchone()

        found = server.run(find)
        if found is None:
            raise UserError(f"{server.address.shown} holds no gallery: create it, or correct the name.")
        try:
            return cls(server, found[0], GalleryInfo.from_json(found[1], server.address.shown))
        except ValueError as error:
            raise UserError(f"{server.address.shown} is not a gallery that can be read: {error}.") from error

    @classmethod
    def delete(cls, address: str) -> None:
        store = cls.open(address)

        def work(cursor: Cursor) -> None:
            store._line(cursor, lock=True)
            cursor.execute(SQL("DROP TABLE IF EXISTS {}, {}").format(store._table, store._decisions["decisions"]))
            cursor.execute("DELETE FROM proxemic_galleries WHERE number = %s", (store._number,))

        try:
            store._server.run(work)
        finally:
            store.close()

    def __len__(self) -> int:
        return self._fetch(SQL("SELECT count(*) FROM {}").format(self._table))[0][0]

    def add_roots(self, roots: Sequence[str]) -> None:
        def work(cursor: Cursor) -> None:
            merged = merge_roots([*self._line(cursor, lock=True).roots, *roots])
            cursor.execute("UPDATE proxemic_galleries SET roots = %s WHERE number = %s", ([*merged], self._number))

        self._server.run(work)

    def keep_calibration(self, content: Mapping[str, Any]) -> None:
        query = SQL("UPDATE proxemic_galleries SET calibration = %s WHERE number = %s RETURNING number")
        if not self._fetch(query.format(), (Jsonb(dict(content)), self._number)):
            raise UserError(f"{self.address} holds no gallery any more: create it again.")

    def _state(self) -> RemoteState:
        return self._server.run(self._line)

    def _line(self, cursor: Cursor, *, lock: bool = False) -> RemoteState:
        found: Any = cursor.execute(
            SQL(
                "SELECT next_id, columns, index, roots, calibration FROM proxemic_galleries WHERE number = %s {}"
            ).format(SQL("FOR UPDATE" if lock else "")),
            (self._number,),
        ).fetchone()
        if found is None:
            raise UserError(f"{self.address} holds no gallery any more: create it again.")
        next_id, further, index, roots, calibration = found
        return RemoteState(next_id, tuple(further), tuple(roots), calibration, index)

    def _fetch(self, query: Composed, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._server.run(lambda cursor: cursor.execute(query, parameters).fetchall())

    def known_paths(self, paths: Sequence[str]) -> set[str]:
        query = SQL("SELECT path FROM {} WHERE path = ANY(%s)").format(self._table)
        return {path for (path,) in self._fetch(query, [list(paths)])}

    def transaction(self, work: Callable[[], T]) -> T:
        def locked(cursor: Cursor) -> T:
            self._line(cursor, lock=True)
            return work()

        return self._server.run(locked)

    def add(self, vectors: VectorRows, items: pa.Table, features: FeatureRows | None = None) -> RowIds:
        kept: Any = [None] * len(items) if features is None else features
        rows, paths = items.to_pylist(), items["path"].to_pylist()

        def work(cursor: Cursor) -> list[int]:
            state = self._line(cursor, lock=True)
            cursor.execute(SQL("DELETE FROM {} WHERE path = ANY(%s)").format(self._table), (paths,))
            ids = range(state.next_id, state.next_id + len(rows))
            with cursor.copy(SQL("COPY {} FROM STDIN (FORMAT binary)").format(self._table)) as copy:
                copy.set_types(["int8", "text", "text", "jsonb", "vector", "float4[]"])
                for number, item, vector, some in zip(ids, rows, vectors, kept, strict=True):
                    cells = {name: text for name, text in item.items() if name not in OWN and text is not None}
                    texts = (item["path"], item["label"], Jsonb(cells))
                    copy.write_row((number, *texts, Vector(vector), some if some is None else some.tolist()))
            cursor.execute(
                "UPDATE proxemic_galleries SET next_id = %s, columns = %s WHERE number = %s",
                (ids.stop, [*state.with_further(items.column_names)], self._number),
            )
            return [*ids]

        return np.array(self._server.run(work), np.int64)

    def remove(self, where: Where) -> int:
        def work(cursor: Cursor) -> int:
            conditions, values = _conditions(check_where(where, self._line(cursor, lock=True).columns))
            return cursor.execute(SQL("DELETE FROM {} {}").format(self._table, conditions), values).rowcount

        return self._server.run(work)

    def set_labels(self, labels: Mapping[str, str | None]) -> int:
        query = SQL(
            "UPDATE {} AS own SET label = given.label FROM unnest(%s::text[], %s::text[]) AS given (path, label) "
            "WHERE own.path = given.path AND own.label IS DISTINCT FROM given.label"
        ).format(self._table)

        def work(cursor: Cursor) -> int:
            self._line(cursor, lock=True)
            return cursor.execute(query, ([*labels], [*labels.values()])).rowcount

        return self._server.run(work)

    def decisions(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        def composed(text: str) -> Composed:
            return SQL(cast("LiteralString", text.replace("?", "%s"))).format(**self._decisions)

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            name = f"proxemic_decisions_{self._number}"
            if not cursor.execute("SELECT WHERE to_regclass(%s) IS NOT NULL", (name,)).fetchone():
                self._line(cursor, lock=True)  # two at once would fail
                for line in DECISIONS:
                    cursor.execute(composed(line))
            return cursor.execute(composed(statement), values).fetchall()

        return self._server.run(work)

    def _nearest(self, queries: QueryRows, k: int, where: Where | None) -> list[list[tuple[int, Any]]]:
        return self._server.run(lambda cursor: self._search(cursor, queries, k, where))

    def _search(self, cursor: Cursor, queries: QueryRows, k: int, where: Where | None) -> list[list[tuple[int, Any]]]:
        state = self._line(cursor)
        conditions, values = _conditions(check_where(where, state.columns))
        if state.index is None:
            cursor.execute("SET LOCAL enable_indexscan = off")
        else:
            effort = str(min(max(state.index["ef_search"], k), 1000))
            cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", (effort,))
            if self._server.version >= (0, 8):
                # Otherwise conditions discard hits, and fewer rows are returned than exist.
                cursor.execute("SET LOCAL hnsw.iterative_scan = strict_order")
        # For vectors of unit length, the Euclidean order equals the cosine order, and rounds less for near ones.
        nearest = SQL(
            "SELECT place, id, embedding FROM unnest(%s::vector[]) WITH ORDINALITY AS queries (query, place) "
            "CROSS JOIN LATERAL (SELECT id, embedding FROM {table} {conditions} ORDER BY embedding <-> query{ties} "
            "LIMIT %s) AS found"
        ).format(table=self._table, conditions=conditions, ties=SQL(", id" if state.index is None else ""))
        found: list[list[tuple[int, Any]]] = [[] for _ in queries]
        for place, number, vector in cursor.execute(nearest, ([*map(Vector, queries)], *values, k)).fetchall():
            found[place - 1].append((number, vector.to_numpy()))
        return found

    def _rows(self, ids: Sequence[int], fields: Sequence[str]) -> list[Row]:
        return self._select(fields, SQL("WHERE id = ANY(%s)"), (ids,))

    def _select(self, fields: Sequence[str], which: SQL, parameters: Sequence[Any]) -> list[Row]:
        names = SQL(", ").join(Identifier("embedding" if field == "vector" else field) for field in fields)
        query = SQL("SELECT {} FROM {} {}").format(names, self._table, which)
        rows = [dict(zip(fields, row, strict=True)) for row in self._fetch(query, parameters)]
        return [row | {"vector": row["vector"].to_numpy()} for row in rows] if "vector" in fields else rows

    def next_ids(self, after: int = -1, count: int = 24, where: Where | None = None) -> RowIds:
        query = SQL("SELECT id FROM (SELECT * FROM {} {}) AS meeting WHERE id > %s ORDER BY id LIMIT %s")

        def work(cursor: Cursor) -> list[tuple[Any, ...]]:
            conditions, values = _conditions(check_where(where, self._line(cursor).columns))
            return cursor.execute(query.format(self._table, conditions), (*values, after, count)).fetchall()

        return np.array([number for (number,) in self._server.run(work)], np.int64)

    def iterate(self, batch_size: int = 8192) -> Iterator[tuple[VectorRows, pa.Table]]:
        last, columns = -1, self.columns
        while rows := self._select(FIELDS, SQL("WHERE id > %s ORDER BY id LIMIT %s"), (last, batch_size)):
            yield self._split(rows, columns)
            last = rows[-1]["id"]

    def count_labels(self) -> Counter[str | None]:
        return Counter(dict(self._fetch(SQL("SELECT label, count(*) FROM {} GROUP BY label").format(self._table))))

    @property
    def size(self) -> int:
        return self._fetch(SQL("SELECT pg_total_relation_size({}::regclass)").format(Literal(self._name)))[0][0]

    def build_index(self, kind: IndexKind, **settings: int) -> None:
        chosen = check_settings(self.address, kind, settings, {"exact": {}, "hnsw": _HNSW})
        if kind == "hnsw" and self.info.dim > _LARGEST_HNSW:
            raise UserError(
                f"{self.address} has vectors of {self.info.dim:,} dimensions, but pgvector makes an index of up to "
                f"{_LARGEST_HNSW:,}: search without (exact), or make a gallery in a folder."
            )

        new, old = (Identifier(f"{self._name}_embedding{ending}") for ending in ("_new", ""))

        def work(cursor: Cursor) -> None:
            self._line(cursor, lock=True)
            if kind == "hnsw":
                cursor.execute(
                    SQL(
                        "CREATE INDEX {} ON {} USING hnsw (embedding vector_l2_ops) WITH (m = {}, ef_construction = {})"
                    ).format(new, self._table, Literal(chosen["m"]), Literal(chosen["ef_construction"]))
                )
            # Last, as other sessions wait from here on.
            cursor.execute(SQL("DROP INDEX IF EXISTS {}").format(old))
            cursor.execute(SQL("ALTER INDEX IF EXISTS {} RENAME TO {}").format(new, old))
            cursor.execute(
                "UPDATE proxemic_galleries SET index = %s WHERE number = %s",
                (Jsonb(chosen) if kind == "hnsw" else None, self._number),
            )

        self._server.run(work)

    def verify(self) -> list[str]:
        # Reading all pages makes the server check their checksums, if it has any.
        query = SQL(
            "SELECT count(*) FILTER (WHERE id < 0 OR id >= %s), "
            "count(*) FILTER (WHERE EXISTS (SELECT FROM jsonb_object_keys(columns) AS name WHERE name <> ALL (%s))), "
            "count(*) FILTER (WHERE %s AND NOT vector_norm(embedding) BETWEEN 0.999 AND 1.001 "
            "AND vector_norm(embedding) > 0), sum(length(path) + length(label)) FROM {}"
        ).format(self._table)

        def work(cursor: Cursor) -> list[tuple[int, str]]:
            state = self._line(cursor)
            is_cosine = self.info.distance == "cosine"
            counts: Any = cursor.execute(query, (state.next_id, [*state.further], is_cosine)).fetchone()
            wrong = ("ids that were not given yet", "columns that the gallery does not have", "vectors not of length 1")
            return [*zip(counts, wrong, strict=False)]

        return [f"{self.address} has {count:,} rows with {what}." for count, what in self._server.run(work) if count]

    def close(self) -> None:
        self._server.close()


def _has_galleries(cursor: Cursor) -> bool:
    found: Any = cursor.execute("SELECT to_regclass('proxemic_galleries') IS NOT NULL").fetchone()
    return found[0]


def _prepare(cursor: Cursor, shown: str) -> None:
    """Create the extension and the table of galleries if they are missing."""
    if not cursor.execute("SELECT FROM pg_extension WHERE extname = 'vector'").fetchone():
        try:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
            raise UserError(
                f"The server of {shown} does not have pgvector: have an administrator install it."
            ) from error
        except errors.InsufficientPrivilege as error:
            raise UserError(without_vectors(shown)) from error
    if not _has_galleries(cursor):
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        cursor.execute(_GALLERIES)


def _conditions(conditions: Mapping[str, Sequence[str | None]]) -> tuple[Composed, list[Any]]:
    """Build the WHERE clause of conditions and its parameters; names of further columns are parameters, too."""
    parts, values = [], []
    for name, allowed in conditions.items():
        column, of_column = (SQL("columns ->> %s"), [name]) if name not in OWN else (Identifier(name), [])
        texts = [value for value in allowed if value is not None]
        parts.append(SQL("({0} = ANY(%s) OR (%s AND {0} IS NULL))").format(column))
        values += [*of_column, texts, None in allowed, *of_column]
    return SQL("{} {}").format(SQL("WHERE" if parts else ""), SQL(" AND ").join(parts)), values
