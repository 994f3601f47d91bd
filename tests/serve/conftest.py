"""A server that the tests of this folder share, and the photos that its gallery has."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from servings import Serving
from shelves import write_shelf


@pytest.fixture(scope="session")
def stall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `shelf`, but to be changed: photos, model, and their gallery, shop."""
    folder = write_shelf(tmp_path_factory.mktemp("stall"))
    shutil.copytree(folder / "photos", folder / "more")
    return folder


@pytest.fixture(scope="session")
def serving(stall: Path) -> Iterator[Serving]:
    """A server with small limits."""
    limits = ("--max-bytes", "400000", "--max-pixels", "250000", "--max-queue", "4")
    started = Serving(stall, stall / "shop", "--threshold", "0.0001", *limits)
    yield started
    assert started.end() == 0
    assert "Traceback" not in started.log.read_text()
