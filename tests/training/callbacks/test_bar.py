"""The bar shows when the whole run will end, and messages begin on a new line."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proxemic.runs.directory import RunDirectory
from proxemic.training.callbacks.bar import TrainingBar
from proxemic.training.record import Session


@pytest.fixture
def trainer() -> Any:
    return SimpleNamespace(
        current_epoch=0, max_epochs=3, num_training_batches=10, global_step=0, progress_bar_metrics={},
        loggers=[], is_global_zero=True, total_train_batches=10, is_last_batch=False,
    )  # fmt: skip


@pytest.fixture
def bar(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> TrainingBar:
    recipe = SimpleNamespace(kind="images", batches=SimpleNamespace(size=8), evaluation=SimpleNamespace(metric="map@r"))
    bar = TrainingBar(Session(recipe, RunDirectory(Path())))  # type: ignore[arg-type]
    monkeypatch.setattr("proxemic.training.callbacks.bar.time", SimpleNamespace(monotonic=lambda: bar.now))  # type: ignore[attr-defined]
    bar._trainer, bar.now = trainer, 100.0  # type: ignore[attr-defined]
    bar.on_train_start(trainer, SimpleNamespace())  # type: ignore[arg-type]
    bar.on_train_epoch_start(trainer)
    return bar


def test_the_time_left_is_of_all_epochs(bar: TrainingBar, trainer: Any) -> None:
    assert bar.get_metrics(trainer, SimpleNamespace()).keys() == {"loss", "images/s"}  # type: ignore[arg-type]
    trainer.global_step, bar.now = 12, 124.0  # type: ignore[attr-defined]
    bar.session.record.rows.append({"map@r": 0.25})
    bar.on_train_batch_end(trainer, SimpleNamespace(), {"loss": torch.tensor(2.0)}, None, 11)  # type: ignore[arg-type]
    items = bar.get_metrics(trainer, SimpleNamespace())  # type: ignore[arg-type]
    assert (items["left"], items["loss"], items["map@r"]) == ("00:36", 2.0, "0.250")


def test_an_error_closes_it_so_that_what_is_said_has_a_line_of_its_own(bar: TrainingBar, trainer: Any) -> None:
    bar.on_exception(trainer, SimpleNamespace(), KeyboardInterrupt())  # type: ignore[arg-type]
    assert bar.train_progress_bar.disable


def test_an_error_before_the_first_batch_needs_no_bar(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    TrainingBar(SimpleNamespace()).on_exception(trainer, SimpleNamespace(), ValueError())  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""
