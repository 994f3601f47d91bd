"""Runs in this process that stop after an epoch, and what they have written."""

import csv
from collections.abc import Mapping
from pathlib import Path

from proxemic.recipes.reader import read_recipe
from proxemic.training import train


class Stopped(Exception):
    pass


def run(recipe: Path, out: Path, *flags: str | Path, stop_after: int | None = None, resume: bool = False) -> Path:
    def on_epoch(row: Mapping[str, float]) -> None:
        if row["epoch"] == stop_after:
            raise Stopped

    read = read_recipe(out / "recipe.yaml" if resume else recipe, [str(flag) for flag in flags])
    train(read.recipe, out, resume=resume, report=[].append, on_epoch=on_epoch)
    return out


def losses(run: Path) -> list[float]:
    with (run / "history.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]
