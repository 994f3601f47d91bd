from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images import write_folder, write_recipe
from processes import run_processes


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes finds; they start once, as that takes seconds."""
    return run_processes(Path(__file__).parent / "gathering.py", tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder of its own with its images, where the tests of a module may put their runs."""
    folder = tmp_path_factory.mktemp("recipe")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


@pytest.fixture(scope="module")
def without_plots() -> Iterator[None]:
    """Runs in this process draw no plots, which cost as much as an epoch of so few images."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_curves", "draw_gallery"):
            patch.setattr(f"proxemic.training.results.{name}", lambda *_, **__: None)
        yield
