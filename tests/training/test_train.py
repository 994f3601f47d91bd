"""Arguments that `train` refuses, and runs that are stopped before or after the training itself."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from images import write_folder, write_recipe
from proxemic.errors import Interrupted, UserError
from proxemic.losses import ProxyAnchorLoss, ProxyLoss
from proxemic.recipes.reader import ReadRecipe, read_recipe, to_yaml
from proxemic.runs.processes import Processes
from proxemic.training import Recipe, hardware, train

MODULE = sys.modules["proxemic.training.train"]  # whose name the function has taken


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> ReadRecipe:
    folder = tmp_path_factory.mktemp("train")
    path = write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))
    measured = "[{class_path: proxemic.training.DistanceToProxy}]"
    flags = ["--training.epochs", "1", "--evaluation.untrained", "false", "--training.callbacks", measured]
    return read_recipe(path, flags)


@pytest.fixture
def recipe(read: ReadRecipe) -> Recipe:
    return read.recipe


def test_arguments_that_contradict_each_other_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train is given no recipe: give a Recipe, a name or a file"):
        train(out=tmp_path / "run")
    with pytest.raises(UserError, match="train is given a Recipe and overrides"):
        train(recipe, tmp_path / "run", overrides={"training.epochs": 2})
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_was_read_is_kept_as_it_is_written(read: ReadRecipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(read, run, report=[].append)
    assert (run / "recipe.yaml").read_text() == to_yaml(read.recipe)
    with pytest.raises(UserError, match=r"and overrides: give them to proxemic\.recipes\.load or read_recipe"):
        train(read, tmp_path / "other", overrides={"training.epochs": 2})


def test_another_run_that_has_begun_in_the_meantime_is_left_alone(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(MODULE, "remove_stale_temporaries", lambda path: (path / "recipe.yaml").write_text("theirs"))
    with pytest.raises(UserError, match=f"{run} holds another run: choose another --out"):
        train(recipe, run, report=[].append)
    assert (run / "recipe.yaml").read_text() == "theirs"
    assert not (run / "environment.json").exists()


def test_ctrl_c_after_the_training_says_that_it_is_saved(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("proxemic.training.results.write_results", interrupt)
        with pytest.raises(Interrupted, match=f"Stopped; what was saved is kept: .* --resume {run}"):
            train(recipe, run, report=[].append)
    assert not (run / "metrics.json").exists()
    metrics = train(out=run, resume=True, report=[].append).metrics
    assert metrics == json.loads((run / "metrics.json").read_text())
    assert metrics.keys() >= {"measured", "measured_before"}


def test_the_loss_is_compiled_where_the_recipe_says_so(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[ProxyLoss] = []
    monkeypatch.setattr(ProxyLoss, "compile", lambda loss: compiled.append(loss))
    train(recipe, tmp_path / "plain", report=[].append)
    assert not compiled  # `auto`, on a CPU
    task = replace(recipe, training=replace(recipe.training, compile=True))
    train(task, tmp_path / "compiled", report=[].append)
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("chosen", "steps", "kind", "compiles"),
    [
        ("auto", 20_000, "cuda", True),
        ("auto", 19_999, "cuda", False),
        ("auto", 20_000, "cpu", False),
        (False, 20_000, "cuda", False),
    ],
)
def test_a_loss_is_compiled_where_that_pays(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, chosen: Any, steps: int, kind: str, compiles: bool
) -> None:
    monkeypatch.setattr(hardware, "pick_device", lambda _: torch.device(kind))
    recipe = replace(recipe, training=replace(recipe.training, compile=chosen))
    assert hardware.compiles(recipe, [ProxyAnchorLoss(2, 2)], steps, Processes()) is compiles
    assert not hardware.compiles(recipe, [ProxyAnchorLoss(200, 2, sample_rate=0.5)], steps, Processes())
