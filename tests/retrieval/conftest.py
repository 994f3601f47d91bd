"""The PostgreSQL server of all tests of galleries."""

from collections.abc import Iterator

import pytest

from servers import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server, which tests leave running."""
    server = Postgres()
    yield server
    server.stop()
