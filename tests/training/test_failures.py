"""Failures are explained in one sentence: too little memory, wrong checkpoints, and the user's own code."""

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from command_line import Here, assert_refused
from leftovers import killed_at
from proxemic.errors import OutOfMemory, UserError
from proxemic.models import EmbeddingModel
from proxemic.recipes.reader import ReadRecipe, read_recipe
from proxemic.training import Recipe, RunDirectory, train
from proxemic.training.failures import explained
from proxemic.training.record import Session
from stopping import after_step

NO_CPU_MEMORY = "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


@pytest.fixture(scope="module")
def read(recipe: Path) -> ReadRecipe:
    return read_recipe(recipe, ["--training.epochs", "1", "--evaluation.untrained", "false"])


def failures(recipe: Recipe, path: Path) -> AbstractContextManager[None]:
    return explained(Session(recipe, RunDirectory(path)))


def run(read: ReadRecipe, out: Path, **options: object) -> None:
    train(read.recipe, out, report=[].append, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(NO_CPU_MEMORY),
    ],
)
def test_too_little_memory_names_what_to_lower(read: ReadRecipe, tmp_path: Path, error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(OutOfMemory) as caught, after_step(1, fail):
        run(read, tmp_path / "run")
    said = str(caught.value)
    for words in (
        "batches.micro_batches, which is 1",
        "batches.size, which is 8",
        f"in {tmp_path}",
        "proxemic train --resume",
    ):
        assert words in said
    with explained_to_fail("batches.size, which is 8"), failures(read.recipe, tmp_path / "none"):
        raise error


def test_a_batch_norm_of_one_image_names_what_to_raise(read: ReadRecipe, tmp_path: Path) -> None:
    split = replace(read.recipe, batches=replace(read.recipe.batches, micro_batches=8))
    for recipe, words in ((split, "8, lower batches.micro_batches, which is 8, or"), (read.recipe, "8, or")):
        said = f"raise batches.size, which is {words} set model.freeze_batch_norm to true"
        with pytest.raises(ValueError, match=said), failures(recipe, tmp_path):
            nn.BatchNorm2d(3).train()(torch.zeros(1, 3, 1, 1))


def explained_to_fail(words: str) -> "pytest.RaisesExc[UserError]":
    return pytest.raises(UserError, match=re.escape(words))


def test_a_checkpoint_of_something_else_or_of_another_recipe(
    read: ReadRecipe, recipe: Path, tmp_path: Path, here: Here
) -> None:
    other = tmp_path / "run"
    run(read, other)
    (other / "metrics.json").unlink()
    text = (other / "recipe.yaml").read_text()
    (other / "recipe.yaml").write_text(text.replace("proxies_per_class: 2", "proxies_per_class: 3"))
    assert_refused(here("train", "--resume", other), ["last.ckpt does not fit the recipe next to it", "size mismatch"])
    (other / "recipe.yaml").write_text(text)
    for content in ({"state_dict": {}, "epoch": 3}, [1, 2]):
        torch.save(content, other / "checkpoints" / "last.ckpt")
        assert_refused(here("train", "--resume", other), ["last.ckpt is a checkpoint of something else", "--out"])


def test_images_that_the_network_cannot_take_are_refused_before_anything_is_written(
    recipe: Path, tmp_path: Path, here: Here
) -> None:
    for flags in (["--images.size", "2"], ["--augment.size", "2", "--augment.random_resized_crop", "[0.5, 1]"]):
        result = here("train", "--recipe", recipe, "--out", tmp_path / "run", *flags)
        name = flags[0].removeprefix("--")
        assert_refused(result, [f"{name} is 2, but the network (convnet) cannot take images of 2 by 2 pixels"])
    assert not (tmp_path / "run").exists()


def test_too_little_memory_for_the_first_image_is_not_called_a_wrong_size(
    read: ReadRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(NO_CPU_MEMORY)

    monkeypatch.setattr(EmbeddingModel, "forward", fail)
    with pytest.raises(OutOfMemory, match=r"The memory is not enough .*batches.micro_batches"):
        run(read, tmp_path / "run")
    assert not (tmp_path / "run").exists()


OWN = """
from proxemic.losses import ProxyAnchorLoss
from proxemic.training import Callback

def divide(step):
    return 1 / (1 - step)

class Own(ProxyAnchorLoss):
    def objective(self, positive, negative, labels, embeddings):
        raise KeyError("no such thing")

class Watch(Callback):
    def on_step_end(self, training, loss):
        divide(training.step)

class Refuses(ProxyAnchorLoss):
    def __init__(self, num_classes: int, embedding_size: int):
        raise RuntimeError("cannot be made")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    return str(tmp_path / "own_parts.py")


def test_an_error_in_a_loss_of_ones_own_is_shown_as_such(recipe: Path, tmp_path: Path, here: Here, own: str) -> None:
    out = tmp_path / "run"
    result = here("train", "--recipe", recipe, "--out", out, "--loss", "own_parts.Own")
    place = f"own_parts.Own.objective failed at {own}:{line_of('no such thing')} with KeyError: 'no such thing'"
    assert_refused(result, [place, "--traceback", f"proxemic train --resume {out}"])
    with pytest.raises(UserError) as caught:
        here("--traceback", "train", "--resume", out)
    assert isinstance(caught.value.__cause__, KeyError)

    result = here("train", "--recipe", recipe, "--out", tmp_path / "other", "--loss", "own_parts.Refuses")
    assert_refused(result, ["own_parts.Refuses.__init__ failed", "with RuntimeError: cannot be made"])
    assert "--resume" not in result.stderr
    assert not (tmp_path / "other").exists()


def test_an_error_in_what_a_callback_of_ones_own_calls(recipe: Path, tmp_path: Path, here: Here, own: str) -> None:
    flags = ["--training.callbacks", "[{class_path: own_parts.Watch}]"]
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", *flags)
    place = f"own_parts.Watch.on_step_end failed at {own}:{line_of('1 / (1')} with ZeroDivisionError"
    assert_refused(result, [place])


def line_of(words: str) -> int:
    return next(number for number, line in enumerate(OWN.splitlines(), 1) if words in line)


class Stops:
    def on_epoch(self, row: Mapping[str, float]) -> None:
        raise LookupError("enough")


def test_what_on_epoch_raises_ends_the_training_as_it_is(read: ReadRecipe, tmp_path: Path) -> None:
    on_epoch: Callable[[Mapping[str, float]], object] = Stops().on_epoch
    with pytest.raises(LookupError, match="enough"):
        run(read, tmp_path / "run", on_epoch=on_epoch)


def test_what_killed_processes_left_in_a_run_is_removed(read: ReadRecipe, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(read, out)
    (out / "metrics.json").unlink()
    left = [killed_at(out / "recipe.yaml"), killed_at(out / "checkpoints" / "last.ckpt")]
    run(read, out, resume=True)
    assert not any(path.exists() for path in left)
