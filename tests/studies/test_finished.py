"""Finished runs, opened."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from command_line import warm_proxemic
from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.losses import WarpedSoftmaxLoss
from proxemic.studies import load_loss
from proxemic.studies.finished import FinishedRun, find_runs

TWO_PHASES = """\
loss: {class_path: proxemic.losses.WarpedSoftmaxLoss, init_args: {alpha: 3.0, k1: 0.5, k2: 1.5}}
model: {normalize: false}
evaluation: {distance: euclidean, start: false}
second_phase: {epochs: 1, loss: {alpha: 1.0}, optim: {lr: 0.001}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of two phases each."""
    folder = tmp_path_factory.mktemp("finished")
    write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))
    recipe = folder / "two.yaml"
    recipe.write_text(f"extends: {folder / 'tiny.yaml'}\n{TWO_PHASES}")
    paths = [folder / "two-phases" / f"seed-{seed}" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        result = warm_proxemic(
            "train", "--recipe", recipe, "--out", path, "--training.epochs", "2", "--seed", str(seed)
        )
        assert result.returncode == 0, result.stderr
    return paths


def test_the_loss_is_that_of_the_phase_of_the_chosen_epoch(runs: list[Path], tmp_path: Path) -> None:
    for epoch, alpha in ((1, 3.0), (2, 1.0)):
        path = tmp_path / str(epoch)
        shutil.copytree(runs[0], path)
        metrics = json.loads((path / "metrics.json").read_text())
        (path / "metrics.json").write_text(json.dumps(metrics | {"epoch": epoch}))
        loss = load_loss(path)
        assert isinstance(loss, WarpedSoftmaxLoss)
        assert loss.f1 is not None
        assert loss.f1(torch.tensor([2.0])).item() == (2.0 if alpha == 3.0 else 2.5)


def test_repetitions_are_of_one_setting_and_other_runs_are_not(runs: list[Path], tmp_path: Path) -> None:
    one, other = map(FinishedRun, runs)
    assert one.setting == other.setting
    assert one.name == other.name == "two-phases"
    shutil.copytree(runs[0], tmp_path / "changed")
    recipe = tmp_path / "changed" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 0.002", "lr: 0.003"))
    assert FinishedRun(tmp_path / "changed").setting != one.setting
    assert FinishedRun(tmp_path / "changed").name == "changed"


def test_trained_and_untrained_weights(runs: list[Path]) -> None:
    run = FinishedRun(runs[0])
    trained, untrained = run.loss.state_dict()["proxies"], run.untrained_loss().state_dict()["proxies"]
    assert trained.shape == untrained.shape
    assert not torch.allclose(trained, untrained)
    assert torch.equal(untrained, run.untrained_loss().state_dict()["proxies"])
    embeddings = run.embed(run.test)
    assert embeddings.shape == (len(run.test), 16)
    assert torch.equal(embeddings, run.embed(run.test))


def test_what_a_pattern_finds_beside_runs_is_left_out(runs: list[Path], tmp_path: Path) -> None:
    log = runs[0].parent / "seed-0.log"
    log.write_text("training\n")
    assert [run.path for run in find_runs([*runs, log, runs[0]])] == runs
    with pytest.raises(UserError, match="does not hold a run"):
        find_runs([tmp_path / "missing"])
    with pytest.raises(UserError, match="does not hold a run"):
        find_runs([log])


def test_images_without_a_training_class_are_refused(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "moved")
    recipe = tmp_path / "moved" / "recipe.yaml"
    other = write_folder(tmp_path / "other", classes=9)
    text = recipe.read_text()
    (line,) = (line for line in text.splitlines() if line.strip().startswith("root:"))
    recipe.write_text(text.replace(line, f"    root: {other}"))
    with pytest.raises(UserError, match=r"training classes of .* have no images any more"):
        _ = FinishedRun(tmp_path / "moved").train


def test_a_trial_of_a_search_is_not_looked_at_on_test_classes(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "trial")
    environment = tmp_path / "trial" / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"test": False}))
    assert len(FinishedRun(tmp_path / "trial").splits.train)
    with pytest.raises(UserError, match="trial of proxemic tune"):
        _ = FinishedRun(tmp_path / "trial").test


def test_predictions_are_named_without_the_images(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(runs[0].parents[1] / "images"), str(tmp_path / "gone")))
    run, whole = FinishedRun(tmp_path / "run"), FinishedRun(runs[0])
    assert run.class_names == whole.splits.train.class_names
    embeddings = whole.embed(whole.splits.train)
    assert torch.equal(run.loss.predict(embeddings), whole.loss.predict(embeddings))  # type: ignore[union-attr]
    (tmp_path / "run" / "classes.json").unlink()  # as in older runs, which need the images
    with pytest.raises(UserError, match="gone does not exist"):
        _ = FinishedRun(tmp_path / "run").class_names


def test_damaged_files_are_named(runs: list[Path], tmp_path: Path) -> None:
    for name in ("metrics.json", "classes.json", "split.arrow", "loss.safetensors"):
        path = tmp_path / name
        shutil.copytree(runs[0], path)
        (path / name).write_bytes(b"{")
        with pytest.raises(UserError, match=name):
            _ = FinishedRun(path).loss, FinishedRun(path).splits
