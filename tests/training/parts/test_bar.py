"""The bar shows when the whole run will end, and messages begin on a new line."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from proxemic.recipes.reader import read_recipe
from proxemic.training.parts import bar as module
from proxemic.training.parts.bar import TrainingBar


def test_the_time_left_is_of_all_epochs(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    bar = TrainingBar(read_recipe(recipe).recipe, batches=10, shown=True)
    bar.begin_epoch(0, 3, done=4, metric=None)  # resumed: 6 of 26 steps are left in it
    for done in range(5, 11):
        now += 2
        bar.update(done, torch.tensor(2.0))
    first = capsys.readouterr().err
    assert "epoch 1/3" in first
    assert "left=00:40, loss=2, images/s=4" in first.splitlines()[-1].split("\r")[-1]
    assert "map@r" not in first
    now += 1000  # of the evaluation
    bar.end_epoch()
    bar.begin_epoch(1, 3, done=0, metric=0.25)
    now += 2
    bar.update(1, torch.tensor(1.0))
    assert "map@r=0.250" in capsys.readouterr().err


def test_an_error_closes_it_so_that_a_message_has_a_line_of_its_own(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = TrainingBar(read_recipe(recipe).recipe, batches=10, shown=True)
    bar.close()  # an error before the first batch
    assert capsys.readouterr().err == ""
    bar.begin_epoch(0, 1, done=0, metric=None)
    bar.close()
    assert capsys.readouterr().err.endswith("\n")
