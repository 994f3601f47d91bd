"""A frozen backbone embeds images once: training reads their features, and other runs find them."""

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import warm
from command_line import TERMINAL
from onnx_files import network
from proxemic.models import ModelConfig, build_model, load_model
from proxemic.recipes.reader import read_recipe
from proxemic.runs.kept import kept_embeddings
from proxemic.training import TrainingResult, train
from proxemic.training.features import network_key, trains_on_features

PLAIN = ["--augment.random_resized_crop", "null", "--augment.horizontal_flip", "0", "--augment.noise", "0"]
PLAIN += ["--model.train", "head", "--training.epochs", "2", "--training.threads", "1"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of embeddings."""
    monkeypatch.setenv("PROXEMIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PROXEMIC_CACHE_GB", "1")
    return tmp_path / "cache"


def kept() -> int:
    return sum(rows for rows, _ in kept_embeddings().values())


def run(recipe: Path, out: Path, *flags: str) -> TrainingResult:
    return train(read_recipe(recipe, [*PLAIN, *flags]).recipe, out, report=[].append)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], True),
        (["--augment.noise", "0.1"], False),
        (["--model.train", "all"], False),
        (["--model.pooling", "gem"], False),
    ],
)
def test_features_are_read_if_each_epoch_would_give_the_same(recipe: Path, flags: list[str], expected: bool) -> None:
    assert trains_on_features(read_recipe(recipe, [*PLAIN, *flags]).recipe) == expected


def test_results_are_those_of_reading_images(
    recipe: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--model.head", "residual", "--model.head_init", "pca", "--batches.images_per_class", "2")
    read = run(recipe, tmp_path / "read", *flags)
    count = kept()
    splits = read_recipe(recipe, PLAIN).recipe.load()
    assert splits.validation is not None
    assert count == len(splits.train) + len(splits.validation)
    again = run(recipe, tmp_path / "again", *flags)
    assert (kept(), again.metrics) == (count, read.metrics), "another run finds the features"
    with monkeypatch.context() as patch:
        patch.setattr("proxemic.training.features.trains_on_features", lambda _: False)
        plain = run(recipe, tmp_path / "plain", *flags)
    for name in ("test", "untrained", "validation"):
        assert read.metrics[name] == pytest.approx(plain.metrics[name], abs=1e-6)
    ours, theirs = (load_model(result.path)[0].state_dict() for result in (read, plain))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-5)


KILLED = """
import os, signal, sys
from proxemic.cli import main
from proxemic.runs import kept

kept._SECONDS = 0
add, calls = kept.KeptVectors.add, []

def and_then(*words):
    add(*words)
    calls.append(words)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

kept.KeptVectors.add = and_then
sys.exit(main())
"""


def test_a_run_killed_among_the_features_goes_on(recipe: Path, tmp_path: Path, cache: Path) -> None:
    flags = [*PLAIN, "--evaluation.batch_size", "4", "--evaluation.untrained", "false"]
    environment = {**TERMINAL, "PROXEMIC_CACHE": str(cache), "PROXEMIC_CACHE_GB": "1"}
    words = ["train", "--recipe", recipe, *flags, "--out", tmp_path / "run"]
    process = warm.run("-c", KILLED, *words, environment=environment)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert kept() == 12
    killed = train(out=tmp_path / "run", resume=True, report=[].append)
    whole = run(recipe, tmp_path / "whole", *flags)
    for name, value in whole.metrics["test"].items():
        assert killed.metrics["test"][name] == pytest.approx(value, abs=1e-4)


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_another_file_of_the_same_name_is_another_network(tmp_path: Path) -> None:
    config = ModelConfig(backbone=str(tmp_path / "net.onnx"), train="head", image_size=8)
    keys = []
    for batch in ("n", 2, "n"):
        (tmp_path / "net.onnx").write_bytes(network((batch, 3, 8, 8)))
        keys.append(network_key(build_model(config)))
    assert keys[0] == keys[2] != keys[1]
