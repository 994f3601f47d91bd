"""Runs in this process that stop after an epoch or are killed in one, and their files."""

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from proxemic.recipes.reader import read_recipe
from proxemic.training import train
from proxemic.training.callbacks.saving import SaveRun


class Stopped(Exception):
    pass


def run(recipe: Path, out: Path, *flags: str | Path, stop_after: int | None = None, resume: bool = False) -> Path:
    def on_epoch(row: Mapping[str, float]) -> None:
        if row["epoch"] == stop_after:
            raise Stopped

    read = read_recipe(out / "recipe.yaml" if resume else recipe, [str(flag) for flag in flags])
    train(read.recipe, out, resume=resume, report=[].append, on_epoch=on_epoch)
    return out


class _Killed(BaseException):
    """Leaves a run as a kill does: nothing more is saved, and nothing is said."""


def killed_and_resumed(recipe: Path, out: Path, *flags: str | Path) -> list[str]:
    """Train until the first step is saved, in the middle of an epoch, and resume; the lines for the user before."""
    save, said = SaveRun._save, list[str]()

    def die(*arguments: object) -> None:
        save(*arguments)  # type: ignore[arg-type]
        raise _Killed

    read = read_recipe(recipe, [*map(str, flags), "--training.checkpoint_minutes", "0"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SaveRun, "_save", die)
        with pytest.raises(_Killed):
            train(read.recipe, out, report=said.append)
    train(out=out, resume=True, report=[].append)
    return said


def losses(run: Path) -> list[float]:
    with (run / "history.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]
