"""`tune` as a function: what it refuses before it trains; its searches are in tests/cli/test_tune.py."""

from pathlib import Path
from typing import Any

import pytest

from proxemic.errors import UserError
from proxemic.recipes import load
from proxemic.studies.tuning import tune


def test_overrides_are_values_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="select_on is last"):
        tune("glyphs", out=tmp_path / "out", overrides={"evaluation.select_on": "last"})
    with pytest.raises(UserError, match="select_on is last"):
        tune(load("glyphs", evaluation={"select_on": "last"}), out=tmp_path / "out")
    with pytest.raises(UserError, match=r"Flags give optim\.lr, which is all that a stage"):
        tune(
            "glyphs",
            out=tmp_path / "out",
            overrides={"optim.lr": 0.1},
            space=_space(tmp_path, "- search: {optim.lr: {factor: 10}}"),
        )
    assert not (tmp_path / "out").exists()


def _space(folder: Path, text: str) -> str:
    path = folder / "space.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": 0.0}, "--budget is 0.0, but must be a number of complete trials above 0"),
        ({"budget": 4.0, "trials": 8}, "--budget and --trials both say"),
        ({"budget": 4.0, "sampler": "grid"}, "--budget and --sampler grid both say"),
        ({"seeds": 0}, "--seeds is 0, but must be at least 1"),
        ({"seeds": 2, "pruner": "median"}, "take --pruner halving, or one seed"),
    ],
)
def test_numbers_that_are_refused(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        tune("glyphs-small/softmax", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
