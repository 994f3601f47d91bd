from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import config

from processes import run_processes


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each of two processes, which are started only once, as that takes seconds."""
    return run_processes(Path(__file__).parent / "gathering.py", tmp_path_factory.mktemp("together"))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off type checks, as in a user's process, so that metrics must reject wrong values themselves."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
