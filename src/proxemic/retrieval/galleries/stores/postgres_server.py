"""Addresses of galleries in PostgreSQL, and connections to their server."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlunsplit

from proxemic.addresses import split_server, without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency

with optional_dependency("postgres"):
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import errors
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

Cursor = psycopg.Cursor[tuple[Any, ...]]
T = TypeVar("T")

# Seconds until connecting fails, and milliseconds until a vanished server is noticed.
_DEFAULTS = {"connect_timeout": "5", "keepalives_idle": "30", "tcp_user_timeout": "30000"}


@dataclass(frozen=True)
class Address:
    """Address of a gallery in PostgreSQL: a connection string of libpq; `shown` has no password."""

    conninfo: str = field(repr=False)
    shown: str
    gallery: str

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse ``postgresql://user:password@host:port/database/gallery``."""
        url, (database, gallery) = split_server(address, "postgresql://user:password@host:port/database/gallery", (2,))
        conninfo = urlunsplit(url._replace(path=f"/{database}"))
        if not url.netloc:  # urlunsplit leaves out the // that libpq wants
            conninfo = conninfo.replace(":/", ":///", 1) if not conninfo.startswith(f"{url.scheme}://") else conninfo
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            # Other messages of libpq may quote the password.
            reason = str(error).strip() if "query parameter" in str(error) else "a part of it has characters or % amiss"
            raise UserError(f"{without_password(address)} is not an address of PostgreSQL: {reason}.") from None
        missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
        return cls(make_conninfo(conninfo, **missing), without_password(address), unquote(gallery))


def without_vectors(shown: str) -> str:
    """Return the sentence for a database without pgvector."""
    return f"{shown} has no vectors: have an administrator run CREATE EXTENSION vector in the database."


class Server:
    """A database with a connection that is opened when it is needed, and again after it was dropped."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.version: tuple[int, ...] = ()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._cursor: Cursor | None = None  # of the transaction that runs

    def run(self, work: Callable[[Cursor], T], *, prepare: Callable[[Cursor], object] | None = None) -> T:
        """Run a function in a transaction, a second time if the connection was lost.

        If `work` calls this method, too, that is part of the same transaction.

        Args:
            work: The function, called with a cursor.
            prepare: Creates what the database lacks, after connecting; None expects all to be there.

        Raises:
            UserError: If the server cannot be reached, or refuses.
        """
        if self._cursor is not None:
            return work(self._cursor)
        kept = self._connection is not None
        try:
            try:
                return self._attempt(work, prepare)
            except psycopg.OperationalError:
                if not kept or self._connection is None or not self._connection.closed:
                    raise
                # The connection was dropped since its last use, perhaps by a restart of the server.
                return self._attempt(work, prepare)
        except psycopg.Error as error:
            raise UserError(self._sentence(error)) from error

    def _attempt(self, work: Callable[[Cursor], T], prepare: Callable[[Cursor], object] | None) -> T:
        if self._connection is None or self._connection.closed:
            self.close()
            self._connect(prepare)
        assert self._connection is not None
        with self._connection.transaction(), self._connection.cursor(binary=True) as self._cursor:
            try:
                return work(self._cursor)
            finally:
                self._cursor = None

    def _connect(self, prepare: Callable[[Cursor], object] | None) -> None:
        try:
            connection = psycopg.connect(self.address.conninfo, autocommit=True)
        except psycopg.Error as error:
            said = " ".join(str(error).split()).rstrip(".?")
            raise UserError(
                f"{self.address.shown} cannot be reached: {said}. Start the server, or correct host, port, user, "
                "password (also PGPASSWORD or ~/.pgpass) and database."
            ) from error
        # Close an unclosed connection together with the store, without a warning.
        self._connection = connection
        self._closing = weakref.finalize(self, connection.close)
        with connection.transaction(), connection.cursor() as cursor:
            if prepare is not None:
                prepare(cursor)
            found = cursor.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        if found is None:
            self.close()
            raise UserError(without_vectors(self.address.shown))
        self.version = tuple(int(part) for part in found[0].split("."))
        register_vector(connection)

    def _sentence(self, error: psycopg.Error) -> str:
        said = ": ".join(filter(None, (error.diag.message_primary or str(error), error.diag.message_detail)))
        said = " ".join(said.split()).rstrip(".")
        where = self.address.shown
        if isinstance(error, errors.InsufficientPrivilege):
            user = conninfo_to_dict(self.address.conninfo).get("user") or "the user"
            return f"{where} refuses this to {user} ({said}): have an administrator grant it."
        if isinstance(error, errors.UndefinedTable):
            return f"{where} holds no gallery any more ({said}): create it again."
        is_lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
        if is_lost or isinstance(error, errors.OperatorIntervention):  # such as a shutdown
            return f"{where} is gone ({said}): start the server again."
        return f"{where} refuses this: {said}."

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._closing()
            self._connection = None
