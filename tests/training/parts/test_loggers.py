"""Logs are continued by a resumed run, and any object with `log_metrics` may replace them."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter  # noqa: F401  # what the logger imports late

from command_line import csv_rows
from proxemic.recipes.reader import read_recipe
from proxemic.training import CSVLog, TensorBoardLog, train


def start(folder: Path, step: int) -> tuple[TensorBoardLog, CSVLog]:
    logs = (TensorBoardLog(), CSVLog())
    for log in logs:
        log.begin(folder, step)
        log.save()
    return logs


def write(logs: Sequence[TensorBoardLog | CSVLog], steps: range, values: Mapping[int, float]) -> None:
    for step in steps:
        for log in logs:
            log.log_metrics({"loss": values[step]} | ({"map@r": values[step] / 2} if step % 3 == 2 else {}), step)


def rows(folder: Path) -> list[dict[str, str]]:
    return csv_rows(folder / "csv" / "version_0" / "metrics.csv")


def in_tensorboard(folder: Path, name: str) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / "version_0")).Reload()
    return [event.step for event in events.Scalars(name)]


def test_a_resumed_run_continues_its_logs(tmp_path: Path) -> None:
    values = {step: random.random() for step in range(1, 13)}
    first = start(tmp_path, 0)
    write(first, range(1, 8), values)  # the last checkpoint is of 5 steps
    for log in first:
        log.close()
    time.sleep(1 - time.time() % 1)  # files are read by name, which has whole seconds and then a counter: 10 before 9
    second = start(tmp_path, 5)
    assert [int(row["step"]) for row in rows(tmp_path)] == [*range(1, 6)]  # kept, should it be killed now
    write(second, range(6, 13), values)
    for log in second:
        log.close()
    found = rows(tmp_path)
    assert [int(row["step"]) for row in found] == in_tensorboard(tmp_path, "loss") == [*range(1, 13)]
    assert [row["map@r"] != "" for row in found] == [int(row["step"]) % 3 == 2 for row in found]


class Received:
    """Any object with this method is a logger."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.values.setdefault(step, {}).update(metrics)


def test_a_run_logs_its_loss_learning_rates_and_metrics(recipe: Path, tmp_path: Path) -> None:
    flags = ["--batches.size", "4", "--training.epochs", "8", "--evaluation.untrained", "false"]
    read, received = read_recipe(recipe, flags).recipe, Received()
    read = replace(read, training=replace(read.training, loggers=[received, CSVLog()]))
    train(read, tmp_path / "run", progress=False, report=[].append, test=False)
    each = 7  # steps of an epoch
    assert [*received.values] == sorted({50, *range(each, 8 * each + 1, each)})
    assert received.values[50].keys() == {"loss", "epoch", "lr/backbone", "lr/head", "lr/proxies"}
    assert received.values[each]["lr/proxies"] == 0.02
    assert received.values[8 * each]["lr/proxies"] == pytest.approx(0.02 * 0.1**3)  # the schedule falls every 2 epochs
    for row in csv_rows(tmp_path / "run" / "history.csv"):
        logged = received.values[int(row["step"])]
        assert logged["epoch"] == int(row["epoch"])
        assert logged["validation/map@r"] == float(row["map@r"])
    written = [row["step"] for row in rows(tmp_path / "run" / "logs")]
    assert written == [str(step) for step in received.values]
    assert not (tmp_path / "run" / "logs" / "tensorboard").exists()
