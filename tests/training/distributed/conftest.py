"""Runs of several processes that the tests share."""

from pathlib import Path

import pytest

from images import write_folder, write_recipe
from together import TWO_PHASES, proxemic_together


@pytest.fixture(scope="package")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


@pytest.fixture(scope="package")
def together(recipe: Path) -> Path:
    """A run of two processes, with sharded proxies."""
    run = recipe.parent / "together"
    results = proxemic_together(2, "train", "--recipe", recipe, "--out", run, "--proxies", "sharded", *TWO_PHASES)
    assert [result.returncode for result in results] == [0, 0], results
    assert "Wrote" in results[0].stdout
    assert results[1].stdout == ""
    return run
