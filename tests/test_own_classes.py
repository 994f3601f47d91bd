"""The page on own classes: all of its examples in one run, which ends alike whether or not it is interrupted."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import LightningModule, Trainer
from safetensors.torch import load_file

from command_line import Here, assert_refused
from images import TINY_RECIPE, write_folder
from proxemic.recipes.second_phase import merge
from proxemic.training.checkpointing import RunCheckpointer

PAGE = (Path(__file__).parent.parent / "docs" / "own-classes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with the module and the recipe of the page."""
    classes = [block for block in blocks("python") if not block.startswith("from mine")]
    (tmp_path / "mine.py").write_text("\n\n".join(classes))
    recipe: Any = yaml.safe_load(TINY_RECIPE.format(root=write_folder(tmp_path / "images")))
    recipe["training"]["epochs"] = 2
    for block in blocks("yaml"):
        recipe = merge(recipe, yaml.safe_load(block))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_examples(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here, run, stopped = Here(capsys, monkeypatch), folder / "runs" / "mine", folder / "runs" / "stopped"
    result = here("train", "--recipe", "mine.yaml", "--out", run)
    assert result.returncode == 0, result.stderr
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 < metrics["test"]["spread"] < 1
    assert 0 < metrics["validation"]["spread"] < 1
    assert 0 < metrics["test"]["largest coordinate"] < 1
    found = load_file(run / "loss.safetensors")["loss.log_temperature"]
    assert abs(found.exp() - 0.2) > 1e-3  # it is trained

    batch_end = RunCheckpointer.on_train_batch_end

    def interrupt(self: RunCheckpointer, trainer: Trainer, module: LightningModule, *rest: Any) -> None:
        if trainer.global_step == 2:
            signal.raise_signal(signal.SIGINT)
        batch_end(self, trainer, module, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpointer, "on_train_batch_end", interrupt)
        assert_refused(here("train", "--recipe", "mine.yaml", "--out", stopped), ["after step 2"])
    result = here("train", "--resume", stopped)
    assert result.returncode == 0, result.stderr
    for name in ("model.safetensors", "loss.safetensors", "metrics.json"):
        assert (stopped / name).read_bytes() == (run / name).read_bytes()

    result = here("evaluate", run, "--json", "--resamples", "0")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["test"] == metrics["test"]
    names: dict[str, Any] = {}
    exec(next(block for block in blocks("python") if block.startswith("from mine")), names)
    assert torch.equal(
        names["model"].get_parameter("backbone.network.layers.0.weight"),
        load_file(run / "model.safetensors")["backbone.network.layers.0.weight"],
    )
    assert_refused(here("analyze", "gap", run), ["the loss is SupCon"])
