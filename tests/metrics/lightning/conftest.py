from pathlib import Path
from typing import Any

import pytest

from processes import run_processes


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each of two processes, which are started only once, as that takes seconds."""
    return run_processes(Path(__file__).parent / "gathering.py", tmp_path_factory.mktemp("together"))
