"""An extended run equals one that had as many epochs from the start, or a message says why it cannot."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    StepLR,
)

from command_line import Here, assert_refused
from proxemic.errors import UserError
from proxemic.recipes.reader import read_recipe
from proxemic.training import PolynomialDecay, RunDirectory, train
from proxemic.training.beginning import check_extension

FILES = ("model.safetensors", "loss.safetensors", "metrics.json", "recipe.yaml")


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def recipe(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text().replace("epochs: 5", "epochs: 2"))
    return recipe


@pytest.fixture(scope="module")
def two(recipe: Path) -> Path:
    return begin(recipe, recipe.parent / "two")


@pytest.fixture(scope="module")
def four(recipe: Path) -> Path:
    return begin(recipe, recipe.parent / "four", "--training.epochs", "4")


def begin(recipe: Path, out: Path, *flags: str) -> Path:
    read = read_recipe(recipe, flags)
    train(read.recipe, out, report=[].append)
    return out


def resume(run: Path, epochs: int | None = None) -> None:
    read = read_recipe(run / "recipe.yaml")
    train(read.recipe, run, resume=True, epochs=epochs, report=[].append)


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def assert_same(run: Path, expected: Path) -> None:
    for name in FILES:
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name


def test_a_finished_run_is_extended(
    two: Path, four: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(two, tmp_path / "run")
    here = Here(capsys, monkeypatch)
    result = here("train", "--resume", run, "--training.epochs=4")
    assert result.returncode == 0, result.stderr
    assert_same(run, four)
    assert_refused(here("train", "--resume", run, "--training.epochs", "4"), ["is 4, but the run has 4"])
    assert_same(run, four)


def test_a_run_that_has_not_begun_an_epoch_is_extended(two: Path, four: Path, tmp_path: Path) -> None:
    run = copied(two, tmp_path / "run")
    for name in ("metrics.json", "history.csv", "model.safetensors", "checkpoints/last.ckpt"):
        (run / name).unlink()
    resume(run, 4)
    assert_same(run, four)


@pytest.mark.parametrize("written", [False, True])
def test_a_kill_while_the_recipe_is_replaced(
    two: Path, four: Path, tmp_path: Path, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(two, tmp_path / "run")
    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target.name != "recipe.yaml":
            return replace(path, target)
        if written:
            replace(path, target)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            resume(run, 4)
    assert not (run / "metrics.json").exists()
    resume(run)
    assert_same(run, four if written else two)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (PolynomialDecay, "PolynomialDecay, whose rates fall over all epochs"),
        (lambda rates: CosineAnnealingLR(rates, 2), "CosineAnnealingLR, which comes to its end after 2 epochs"),
        (lambda rates: ChainedScheduler([PolynomialLR(rates, 3)]), "PolynomialLR, which comes to its end after 3"),
        (lambda rates: OneCycleLR(rates, 0.1, total_steps=2), "OneCycleLR, which comes to its end after 2 epochs"),
    ],
)
def test_schedules_of_a_number_of_epochs_are_refused(
    two: Path, make: Callable[[Optimizer], LRScheduler], words: str
) -> None:
    schedule = make(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    with pytest.raises(UserError, match=f"{words}.* --training.start_from {two}"):
        check_extension(RunDirectory(two), 2, 4, schedule)


def test_schedules_that_go_on_are_extended(two: Path) -> None:
    rates = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    parts = ChainedScheduler([StepLR(rates, 2), StepLR(rates, 3)])
    for schedule in (CosineAnnealingLR(rates, 1), CosineAnnealingLR(rates, 4), StepLR(rates, 2), parts, None):
        check_extension(RunDirectory(two), 2, 4, schedule)


def test_what_cannot_be_extended_says_so(two: Path, tmp_path: Path) -> None:
    run = copied(two, tmp_path / "run")
    (run / "checkpoints" / "last.ckpt").unlink()
    with pytest.raises(UserError, match="has no checkpoint to go on from"):
        resume(run, 4)
    assert json.loads((run / "metrics.json").read_text())
    second = {"epochs": 1, "optim": {"lr": 0.001}}
    text = yaml.safe_load((two / "recipe.yaml").read_text())
    text["training"]["start_phase"] = 2
    run = copied(two, tmp_path / "phases")
    (run / "recipe.yaml").write_text(yaml.safe_dump(text | {"second_phase": second}))
    with pytest.raises(UserError, match="trains its second phase alone"):
        resume(run, 4)


def test_the_second_phase_is_not_begun_twice(recipe: Path, tmp_path: Path) -> None:
    run = begin(recipe, tmp_path / "run", "--second_phase.epochs", "1", "--evaluation.untrained", "false")
    with pytest.raises(UserError, match="is in its second phase, which cannot begin later"):
        resume(run, 4)
    assert (run / "metrics.json").exists()
