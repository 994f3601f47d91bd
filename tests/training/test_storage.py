"""Checkpoints are complete or absent, and logs are continued."""

import csv
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from lightning.pytorch.loggers import Logger
from torch.utils.tensorboard import SummaryWriter  # noqa: F401  # what the logger imports late

from proxemic.errors import UserError
from proxemic.training.storage import read_checkpoint, run_loggers


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(UserError, match="not a regular file"):
        read_checkpoint(tmp_path)


def log(loggers: list[Logger], steps: range, values: Mapping[int, float]) -> None:
    for step in steps:
        for logger in loggers:
            logger.log_metrics({"loss": values[step]} | ({"map@r": values[step] / 2} if step % 3 == 2 else {}), step)


def start(folder: Path, step: int) -> list[Logger]:
    loggers = list(run_loggers(folder, step))
    for logger in loggers:
        logger.save()
    return loggers


def logged(folder: Path) -> tuple[list[int], list[int]]:
    """Return the steps in the CSV file and in TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (versions,) = {tuple(sorted(path.name for path in (folder / name).iterdir())) for name in ("csv", "tensorboard")}
    assert versions == ("version_0",)
    with (folder / "csv" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["map@r"] != "" for row in rows] == [int(row["step"]) % 3 == 2 for row in rows]
    events = EventAccumulator(str(folder / "tensorboard" / "version_0")).Reload()
    return [int(row["step"]) for row in rows], [event.step for event in events.Scalars("loss")]


def test_a_resumed_run_continues_its_logs(tmp_path: Path) -> None:
    values = {step: random.random() for step in range(12)}
    first = start(tmp_path, 0)
    log(first, range(7), values)  # the last checkpoint is of 5 steps
    for logger in first:
        logger.finalize("failed")
    second = start(tmp_path, 5)
    assert logged(tmp_path)[0] == [*range(5)]  # kept, should it be killed now
    log(second, range(5, 12), values)
    for logger in second:
        logger.finalize("success")
    assert logged(tmp_path) == ([*range(12)], [*range(12)])
