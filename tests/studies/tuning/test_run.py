"""`tune` as a function; its searches, and what it refuses, are in tests/cli/test_tune.py."""

from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.recipes import load
from proxemic.studies.tuning import tune


def test_overrides_are_values_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="select_on is last"):
        tune(load("glyphs", evaluation={"select_on": "last"}), out=tmp_path / "out")
    with pytest.raises(UserError, match="select_on is last"):
        tune("glyphs", out=tmp_path / "out", overrides={"evaluation.select_on": "last"})
    assert not (tmp_path / "out").exists()
