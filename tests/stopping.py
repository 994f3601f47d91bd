"""Runs in this process that stop after an epoch or are killed in one, and their files."""

import csv
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from proxemic.recipes.reader import read_recipe
from proxemic.training import train
from proxemic.training.loop import Training


class Stopped(Exception):
    pass


def run(recipe: Path, out: Path, *flags: str | Path, stop_after: int | None = None, resume: bool = False) -> Path:
    def on_epoch(row: Mapping[str, float]) -> None:
        if row["epoch"] == stop_after:
            raise Stopped

    read = read_recipe(out / "recipe.yaml" if resume else recipe, [str(flag) for flag in flags])
    train(read.recipe, out, resume=resume, report=[].append, on_epoch=on_epoch)
    return out


@contextmanager
def after_step(step: int, act: Callable[[], object]) -> Iterator[None]:
    """Do something after a step of a training in the block, before it may be saved."""
    save_if_due = Training.save_if_due

    def act_first(training: Training) -> None:
        if training.step == step:
            act()
        save_if_due(training)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "save_if_due", act_first)
        yield


def interrupted_at(step: int) -> AbstractContextManager[None]:
    """Press Ctrl-C after a step of a training in the block."""
    return after_step(step, lambda: signal.raise_signal(signal.SIGINT))


class _Killed(BaseException):
    """Leaves a run as a kill does: nothing more is saved, and nothing is said."""


def _die() -> NoReturn:
    raise _Killed


def killed_and_resumed(recipe: Path, out: Path, *flags: str | Path) -> list[str]:
    """Train until the first step is saved, in the middle of an epoch, and resume; the lines for the user before."""
    said = list[str]()
    read = read_recipe(recipe, [*map(str, flags), "--training.checkpoint_minutes", "0"])
    with pytest.raises(_Killed), after_step(2, _die):
        train(read.recipe, out, report=said.append)
    train(out=out, resume=True, report=[].append)
    return said


def losses(run: Path) -> list[float]:
    with (run / "history.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]
