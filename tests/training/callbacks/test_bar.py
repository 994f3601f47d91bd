"""The bar says when the whole run ends, and leaves its line when something else is to be said."""

from types import SimpleNamespace
from typing import Any

import pytest

from proxemic.training import progress
from proxemic.training.callbacks.bar import TrainingBar
from proxemic.training.record import Record


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def make_trainer(epoch: int) -> Any:
    counted = SimpleNamespace(ready=0)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(current=counted)))
    return SimpleNamespace(
        max_epochs=5,
        current_epoch=epoch,
        num_training_batches=10,
        fit_loop=loop,
        progress_bar_metrics={"loss": 0.5},
        loggers=[],
    )


def train_epoch(bar: TrainingBar, trainer: Any, clock: Clock, batches: int = 10) -> None:
    bar.on_train_epoch_start(trainer)
    for batch in range(batches):
        clock.now += 2.0
        trainer.fit_loop.epoch_loop.batch_progress.current.ready = batch + 1
        bar.on_train_batch_end(trainer, SimpleNamespace(), None, None, batch)  # type: ignore[arg-type]


def make_bar(trainer: Any) -> TrainingBar:
    recipe = SimpleNamespace(kind="images", batches=SimpleNamespace(size=8), evaluation=SimpleNamespace(metric="map@r"))
    bar = TrainingBar(recipe, Record())  # type: ignore[arg-type]
    bar._trainer = trainer
    bar.on_train_start()
    return bar


def test_the_time_left_is_of_all_epochs_with_what_is_between_them(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(0)
    bar = make_bar(trainer)
    train_epoch(bar, trainer, clock)
    assert bar.seconds_left(trainer) == pytest.approx(4 * 20)
    clock.now += 7.0  # validation
    trainer.current_epoch = 1
    train_epoch(bar, trainer, clock, batches=5)
    assert bar.seconds_left(trainer) == pytest.approx(2 * 35 + 7 * 4)
    assert bar.get_metrics(trainer, SimpleNamespace())["left"] == "01:38"  # type: ignore[arg-type]
    assert "left=01:38" in capsys.readouterr().out
    bar.on_train_end()


def test_the_bar_shows_the_last_validation_once_there_is_one(clock: Clock) -> None:
    trainer = make_trainer(0)
    bar = make_bar(trainer)
    assert bar.get_metrics(trainer, SimpleNamespace()).keys() == {"loss", "images/s"}  # type: ignore[arg-type]
    bar.record.rows.append({"map@r": 0.25})
    assert bar.get_metrics(trainer, SimpleNamespace())["map@r"] == "0.250"  # type: ignore[arg-type]


def test_an_error_before_the_first_batch_needs_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingBar(SimpleNamespace(), Record()).on_exception(make_trainer(0), SimpleNamespace(), ValueError())  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""


def test_what_is_said_after_an_error_has_a_line_of_its_own(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(0)
    bar = make_bar(trainer)
    train_epoch(bar, trainer, clock, batches=3)
    bar.on_exception(trainer, SimpleNamespace(), KeyboardInterrupt())  # type: ignore[arg-type]
    assert capsys.readouterr().out.endswith("\n")
