"""A run that is killed at any moment and resumed ends with the same bits as one that is not."""

import gc
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer

import warm
from command_line import Here, assert_refused, proxemic, warm_proxemic, warm_start
from images import write_recipe
from proxemic.training import train
from proxemic.training.callbacks.saving import SaveRun
from stopping import killed_and_resumed
from stopping import run as train_whole


@pytest.fixture(scope="module")
def recipe(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text().replace("epochs: 5", "epochs: 6"))  # long enough to be met in the middle
    return recipe


@pytest.fixture(scope="module")
def uninterrupted(recipe: Path) -> Path:
    # In a new interpreter, whose hashes and addresses are not those of the processes that are compared with it.
    run = recipe.parent / "uninterrupted"
    result = proxemic("train", "--recipe", recipe, "--out", run)
    assert (result.returncode, result.stderr) == (0, "")  # nor does an import print
    return run


def history(run: Path) -> list[list[str]]:
    """Return all columns except the time of the epoch."""
    return [line.split(",")[:-1] for line in (run / "history.csv").read_text().splitlines()]


def training_state(run: Path) -> dict[str, Any]:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return {key: checkpoint[key] for key in ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_same_run(run: Path, expected: Path) -> None:
    for name in ("model.safetensors", "loss.safetensors"):
        assert (run / name).read_bytes() == (expected / name).read_bytes()
    assert json.loads((run / "metrics.json").read_text()) == json.loads((expected / "metrics.json").read_text())
    assert history(run) == history(expected)
    state, wanted = training_state(run), training_state(expected)
    assert_same(state["state_dict"], wanted["state_dict"])
    assert [s["_last_lr"] for s in state["lr_schedulers"]] == [s["_last_lr"] for s in wanted["lr_schedulers"]]
    for one, other in zip(state["optimizer_states"], wanted["optimizer_states"], strict=True):
        assert_same(one["state"], other["state"])
    assert (state["epoch"], state["global_step"]) == (wanted["epoch"], wanted["global_step"])


def wait_for(process: warm.Process, path: Path) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


# Every step saves, so that the kill hits the middle of epochs, their ends and the middle of writes.
@pytest.mark.slow
def test_kill_9_at_a_random_step(recipe: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    flags = ["--training.checkpoint_minutes", "0", "--batches.workers", "2"]
    checkpoint = run / "checkpoints" / "last.ckpt"
    process = warm_start("train", "--recipe", recipe, "--out", run, *flags)
    wait_for(process, checkpoint)
    process.kill()  # surely in the middle of an epoch
    process.communicate()
    before = checkpoint.stat().st_mtime_ns
    process = warm_start("train", "--resume", run)
    while checkpoint.stat().st_mtime_ns == before and process.poll() is None:
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.3))  # and at random while it resumes
    process.kill()
    process.communicate()
    result = warm_proxemic("train", "--resume", run)
    assert result.returncode == 0, result.stderr
    assert_same_run(run, uninterrupted)


def test_a_loss_that_remembers_learns_and_draws_is_resumed_in_the_middle_of_an_epoch(
    recipe: Path, tmp_path: Path
) -> None:
    pml = "pytorch_metric_learning"
    loss = ["--loss", "PairwiseLoss", "--loss.memory_size", "20", "--loss.loss", f"{pml}.losses.MarginLoss"]
    loss += ["--loss.loss.learn_beta", "true", "--loss.miner", f"{pml}.miners.DistanceWeightedMiner"]
    flags = [*loss, "--training.epochs", "2"]
    whole, run = train_whole(recipe, tmp_path / "whole", *flags), tmp_path / "killed"
    killed_and_resumed(recipe, run, *flags)
    assert_same_run(run, whole)
    assert training_state(run)["state_dict"]["loss.loss.memory.label_memory"].numel() == 20


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 0)])
def test_an_interrupt_saves_and_says_how_to_resume(
    recipe: Path, uninterrupted: Path, tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    run = tmp_path / "stopped"
    process = warm_start("train", "--recipe", recipe, "--out", run, "--batches.workers", str(workers))
    wait_for(process, run / "history.csv")
    os.killpg(process.pid, number)  # as a terminal sends Ctrl-C: to the workers too
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in errors
    assert errors.count("\n") == 1
    assert f"proxemic train --resume {run}" in errors
    assert not (run / "metrics.json").exists()
    assert list(run.rglob("*.tmp")) == []

    result = warm_proxemic("train", "--resume", run)
    assert result.returncode == 0, result.stderr
    assert_same_run(run, uninterrupted)
    logged = Path("logs", "csv", "version_0", "metrics.csv")
    assert (run / logged).read_text() == (uninterrupted / logged).read_text()


def test_an_interrupt_at_the_very_end_is_not_forgotten(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, run = Here(capsys, monkeypatch), tmp_path / "run"
    end_epoch = SaveRun.on_train_epoch_end

    def end_and_interrupt(self: SaveRun, trainer: Trainer, task: LightningModule) -> None:
        end_epoch(self, trainer, task)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(SaveRun, "on_train_epoch_end", end_and_interrupt)
        result = here("train", "--recipe", recipe, "--out", run, "--training.epochs", "1")
    assert_refused(result, ["Stopped after the last epoch", f"proxemic train --resume {run}"])
    assert here("train", "--resume", run).returncode == 0


def test_training_leaves_no_handler_and_no_trainer_behind(recipe: Path, tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    train(recipe, tmp_path / "run", overrides={"training.epochs": 1}, progress=False)
    assert [signal.getsignal(number) for number in numbers] == before
    gc.collect()  # a handler would hold the trainer, the model and the data of every run of a search
    assert [obj for obj in gc.get_objects() if type(obj) is Trainer] == []


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


@pytest.mark.parametrize("damage", ["cut", "short", "empty", "hostile"])
def test_a_checkpoint_that_is_damaged_or_hostile_is_refused(
    uninterrupted: Path,
    tmp_path: Path,
    damage: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, run = Here(capsys, monkeypatch), tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    (run / "metrics.json").unlink()
    checkpoint = run / "checkpoints" / "last.ckpt"
    whole = checkpoint.read_bytes()
    match damage:
        case "hostile":
            torch.save({**torch.load(checkpoint, weights_only=True), "callbacks": Hostile()}, checkpoint)
        case "cut":
            checkpoint.write_bytes(whole[: len(whole) // 2])
        case "short":
            checkpoint.write_bytes(whole[:5000])
        case "empty":
            checkpoint.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert_refused(here("train", "--resume", run), ["last.ckpt is no whole checkpoint of tensors", "another --out"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_is_complete_and_holds_no_pickle_but_the_checkpoint(uninterrupted: Path) -> None:
    names = {path.name for path in uninterrupted.iterdir()}
    assert names == {
        "recipe.yaml", "metrics.json", "history.csv", "environment.json", "classes.json", "split.arrow",
        "checkpoints", "model.safetensors", "model.json", "loss.safetensors", "curves.png", "gallery.png", "logs",
        "seconds.json", "report.html",
    }  # fmt: skip
    metrics = json.loads((uninterrupted / "metrics.json").read_text())
    assert set(metrics["test"]) == {"recall@1", "recall@2", "ndcg@2", "map@r", "r_precision"}
    assert metrics["selected_on"] == "validation"
    rows = history(uninterrupted)
    assert rows[0][:3] == ["epoch", "step", "loss"]
    best = max(rows[1:], key=lambda row: float(row[rows[0].index("map@r")]))
    assert metrics["epoch"] == int(best[0])
    assert list((uninterrupted / "logs").rglob("events.out.tfevents*"))
    assert list((uninterrupted / "logs").rglob("metrics.csv"))
    seconds = json.loads((uninterrupted / "seconds.json").read_text())
    assert [*seconds] == [
        "start", "data", "network", "features", "training", "validation", "saving", "test", "pictures", "other",
        "total",
    ]  # fmt: skip
    assert sum(seconds.values()) == pytest.approx(2 * seconds["total"], abs=0.02)


def test_a_run_is_not_resumed_on_other_images(recipe: Path, tmp_path: Path, here: Here) -> None:
    images, run = tmp_path / "images", tmp_path / "run"
    shutil.copytree(recipe.parent / "images", images)
    own = write_recipe(tmp_path / "tiny.yaml", images)
    assert here("train", "--recipe", own, "--out", run, "--training.epochs", "1").returncode == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    finished = here("train", "--resume", run)
    assert "is finished" in finished.stdout
    assert "recall@1" in finished.stdout
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    (run / "metrics.json").unlink()
    (images / "class 03" / "0.png").unlink()
    assert_refused(here("train", "--resume", run), ["class 03/0.png", str(images)])
