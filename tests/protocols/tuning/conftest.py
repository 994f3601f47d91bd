import sqlite3
from collections.abc import Iterator

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine


@pytest.fixture(scope="package", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """SQLite waits for the disk at the end of each transaction; only a loss of power shows it."""

    def connected(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    yield
    event.remove(Engine, "connect", connected)
