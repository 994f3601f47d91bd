"""Connections to PostgreSQL: how addresses are read, and one sentence for whatever fails."""

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

# In seconds: when a server that does not answer is given up; and in milliseconds, one that is gone without a word.
_DEFAULTS = {"connect_timeout": "5", "keepalives_idle": "30", "tcp_user_timeout": "30000"}


@dataclass(frozen=True)
class Address:
    """Where a gallery is: what libpq connects by, how it is shown, without a password, and the gallery's name."""

    conninfo: str = field(repr=False)
    shown: str
    gallery: str

    @classmethod
    def parse(cls, address: str) -> Self:
        """Read ``postgresql://user:password@host:port/database/gallery``; `UserError` where it is not that."""
        url, (database, gallery) = split_server(address, "postgresql://user:password@host:port/database/gallery", (2,))
        conninfo = urlunsplit(url._replace(path=f"/{database}"))
        if not url.netloc:  # which urlunsplit leaves out, with the two strokes that libpq wants
            conninfo = conninfo.replace(":/", ":///", 1) if not conninfo.startswith(f"{url.scheme}://") else conninfo
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            # Other messages of libpq quote what may be the password.
            reason = str(error).strip() if "query parameter" in str(error) else "a part of it has characters or % amiss"
            raise UserError(f"{without_password(address)} is not an address of PostgreSQL: {reason}.") from None
        missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
        return cls(make_conninfo(conninfo, **missing), without_password(address), unquote(gallery))


def without_vectors(shown: str) -> str:
    """Say what a database without pgvector needs."""
    return f"{shown} has no vectors: have an administrator run CREATE EXTENSION vector in the database."


class Server:
    """A database, to which a connection is made when it is needed, and again where it was dropped in between."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.version: tuple[int, ...] = ()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def run(self, work: Callable[[Cursor], T], *, prepare: Callable[[Cursor], object] | None = None) -> T:
        """Do something in a transaction that can be done again.

        Args:
            work: What is done.
            prepare: What makes sure that the database has vectors; None expects them there.

        Raises:
            UserError: If the server cannot be reached, or refuses.
        """
        kept = self._connection is not None
        try:
            try:
                return self._attempt(work, prepare)
            except psycopg.OperationalError:
                if not kept or self._connection is None or not self._connection.closed:
                    raise
                # The connection was dropped since it was last used: the server was started anew, perhaps.
                return self._attempt(work, prepare)
        except psycopg.Error as error:
            raise UserError(self._sentence(error)) from error

    def _attempt(self, work: Callable[[Cursor], T], prepare: Callable[[Cursor], object] | None) -> T:
        if self._connection is None or self._connection.closed:
            self.close()
            self._connect(prepare)
        assert self._connection is not None
        with self._connection.transaction(), self._connection.cursor(binary=True) as cursor:
            return work(cursor)

    def _connect(self, prepare: Callable[[Cursor], object] | None) -> None:
        try:
            connection = psycopg.connect(self.address.conninfo, autocommit=True)
        except psycopg.Error as error:
            said = " ".join(str(error).split()).rstrip(".?")
            raise UserError(
                f"{self.address.shown} cannot be reached: {said}. Start the server, or correct host, port, user, "
                "password (also PGPASSWORD or ~/.pgpass) and database."
            ) from error
        # A connection that nobody closed is closed with the store, without a warning.
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
            return f"{where} holds no gallery any more ({said}): make it anew."
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            return f"{where} is gone ({said}): start the server again."
        if isinstance(error, errors.OperatorIntervention):  # it is being shut down
            return f"{where} is gone ({said}): start the server again."
        return f"{where} refuses this: {said}."

    def close(self) -> None:
        """Give back the connection, if there is one."""
        if self._connection is not None:
            self._closing()
            self._connection = None
