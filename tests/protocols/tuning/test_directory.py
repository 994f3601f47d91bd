"""The directory of a search, when the same search is begun in it again."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.protocols.tuning.directory import TuningDirectory, TuningOptions


def test_another_search_in_the_directory_is_refused(tmp_path: Path) -> None:
    directory = TuningDirectory(tmp_path / "out")
    flags = ["--optim.lr", "0.1"]
    options = TuningOptions("mine.yaml", flags, [], "of the loss", 5, "tpe", "none", None, "out", 0)
    recipe = "training: {epochs: 5}"
    assert not directory.is_begun(options, recipe)
    directory.create(options, recipe)
    assert directory.is_begun(replace(options, flags=["--optim.lr=0.1"]), "training:\n  epochs: 5")
    with pytest.raises(UserError, match="holds a search with another recipe: choose another --out"):
        directory.is_begun(options, "training: {epochs: 6}")
    with pytest.raises(UserError, match="holds a search with another trials, seed: choose another --out"):
        directory.is_begun(replace(options, trials=6, seed=1), recipe)
