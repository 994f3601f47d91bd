"""A run that is killed at any moment and resumed ends with the same bits as one that is not."""

import gc
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import warm
from command_line import Here, assert_refused, proxemic, warm_proxemic, warm_start
from images import write_recipe
from processes import run_processes
from proxemic.errors import Interrupted, UserError
from proxemic.recipes.reader import read_recipe
from proxemic.runs.processes import Processes
from proxemic.training import Callback, RunDirectory, TrainingState, loop, train
from proxemic.training.components import build_components, build_networks
from proxemic.training.loop import Training
from proxemic.training.record import Session
from stopping import interrupted_at, killed_and_resumed
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
    return {key: checkpoint[key] for key in ("epoch", "batch", "step", "model", "loss", "optimizer", "schedule")}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_same_run(run: Path, expected: Path) -> None:
    for name in ("model.safetensors", "loss.safetensors"):
        assert (run / name).read_bytes() == (expected / name).read_bytes()
    assert json.loads((run / "metrics.json").read_text()) == json.loads((expected / "metrics.json").read_text())
    assert history(run) == history(expected)
    state, wanted = training_state(run), training_state(expected)
    for part in ("model", "loss"):
        assert_same(state[part], wanted[part])
    assert_same(state["optimizer"]["state"], wanted["optimizer"]["state"])
    for part in ("epoch", "batch", "step"):
        assert state[part] == wanted[part]
    assert state["schedule"]["_last_lr"] == wanted["schedule"]["_last_lr"]


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
    assert training_state(run)["loss"]["loss.memory.label_memory"].numel() == 20


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


def test_an_interrupt_at_the_very_end_is_not_forgotten(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def interrupt(row: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=f"Stopped after the last epoch.* --resume {run}"):
        train(recipe, run, overrides={"training.epochs": 1}, progress=False, on_epoch=interrupt)
    assert not (run / "metrics.json").exists()
    assert train(out=run, resume=True).metrics["epoch"] == 1


def test_training_leaves_no_handler_and_no_loop_behind(recipe: Path, tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before, older = [signal.getsignal(number) for number in numbers], loops()
    train(recipe, tmp_path / "run", overrides={"training.epochs": 1}, progress=False)
    assert [signal.getsignal(number) for number in numbers] == before
    # A handler would hold the loop, the model and the data of every run of a search.
    assert loops() <= older


def loops() -> set[int]:
    """The loops in memory; earlier tests that failed, or their fixtures, may hold some."""
    gc.collect()
    return {id(found) for found in gc.get_objects() if type(found) is Training}


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
        "start", "data", "network", "features", "training", "validation", "saving", "test", "plots", "other",
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


@pytest.mark.parametrize("fused", ["false", "true"])
@pytest.mark.parametrize("clip", ["clip_value", "clip_norm", "clip_backbone_norm"])
def test_half_precision_clips_gradients_of_their_true_size(
    recipe: Path, tmp_path: Path, clip: str, fused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "make_scaler", lambda *_, **__: torch.amp.GradScaler("cpu"))
    flags = ["--evaluation.select_on", "last", "--evaluation.untrained", "false", "--training.epochs", "1"]
    flags += ["--batches.size", "30", "--optim.lr", "1", "--optim.loss_lr", "1", f"--optim.{clip}", "1e-3"]
    flags += ["--optim.optimizer", f"{{class_path: torch.optim.SGD, init_args: {{fused: {fused}}}}}"]
    read = read_recipe(recipe, flags).recipe
    model, loss = build_networks(read, read.load())
    out = tmp_path / "run"
    train(read, out, progress=False, test=False)
    assert training_state(out)["step"] == 1
    after = load_file(out / "model.safetensors") | load_file(out / "loss.safetensors")
    before = dict(model.named_parameters()) | dict(loss.named_parameters())
    steps = {name: value.detach() - after[name] for name, value in before.items()}
    largest = {
        "clip_value": max(step.abs().max() for step in steps.values()),
        "clip_norm": torch.stack([step.norm() for step in steps.values()]).norm(),
        "clip_backbone_norm": torch.stack([step.norm() for n, step in steps.items() if "backbone" in n]).norm(),
    }
    assert largest[clip].item() == pytest.approx(1e-3, rel=1e-3)


def test_the_network_draws_its_own_numbers_on_each_process(recipe: Path, tmp_path: Path) -> None:
    read = read_recipe(recipe, ["--training.loggers", "[]", "--evaluation.untrained", "false"]).recipe
    splits, drawn = read.load(), []
    for rank in (0, 1, 0):
        parts = build_components(Session(read, RunDirectory(tmp_path)), splits)
        training = Training(Session(read, RunDirectory(tmp_path), Processes(rank)), parts, None)
        training.begin()
        parts.model.register_forward_hook(lambda *_: drawn.append(torch.rand(4)))
        training.train_batch(*next(iter(training.loader)))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_the_network_gets_the_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    for process in run_processes(Path(__file__).with_name("network_gradients.py"), tmp_path):
        assert process["worst"] < 1e-11, process
        assert process["tensors"] > 15
        assert process["clipped"] < 1e-6  # torch adds 1e-6 to the norm


class Counts(Callback):
    """Records the hooks that are called, and keeps the number of all steps in the checkpoint."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.steps = 0

    def on_train_start(self, training: TrainingState) -> None:
        self.hooks.append(f"start at {training.step}, phase {training.phase}, {training.rank} on {training.device}")

    def on_epoch_start(self, training: TrainingState) -> None:
        self.hooks.append(f"epoch {training.epoch}")

    def on_step_end(self, training: TrainingState, loss: Tensor) -> None:
        assert loss.isfinite()
        assert not loss.requires_grad
        self.steps += 1

    def on_epoch_end(self, training: TrainingState) -> None:
        self.hooks.append(f"end of epoch {training.epoch}, after {training.step} steps")

    def on_train_end(self, training: TrainingState) -> None:
        self.hooks.append("end")

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def test_a_callback_is_resumed_within_an_epoch(recipe: Path, tmp_path: Path) -> None:
    flags = ["--training.epochs", "2", "--training.loggers", "[]", "--evaluation.untrained", "false"]
    read, first, second = read_recipe(recipe, flags).recipe, Counts(), Counts()
    with interrupted_at(2), pytest.raises(Interrupted, match="in epoch 1, after step 2"):
        train(replace(read, training=replace(read.training, callbacks=[first])), tmp_path / "run", progress=False)
    assert (first.hooks, first.steps) == (["start at 0, phase 0, 0 on cpu", "epoch 0"], 2)
    again = replace(read, training=replace(read.training, callbacks=[second]))
    train(again, tmp_path / "run", progress=False, resume=True)
    assert second.steps == 6
    assert second.hooks == [
        "start at 2, phase 0, 0 on cpu", "end of epoch 0, after 3 steps",
        "epoch 1", "end of epoch 1, after 6 steps", "end",
    ]  # fmt: skip


def test_objects_of_lightning_are_refused(recipe: Path, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import EarlyStopping
    from lightning.pytorch.loggers import CSVLogger

    read = read_recipe(recipe).recipe
    given: dict[str, Any] = {"callbacks": [EarlyStopping("loss")], "loggers": [CSVLogger("logs")]}
    for key, value in given.items():
        changed = replace(read, training=replace(read.training, **{key: value}))
        with pytest.raises(UserError, match=f"training.{key} is an object of the class {type(value[0]).__name__}, but"):
            train(changed, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
