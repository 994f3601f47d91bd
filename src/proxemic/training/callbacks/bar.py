"""The progress bar of a training run."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from tqdm import tqdm

from proxemic.training.recipe import Recipe
from proxemic.training.record import Record

_OLD = 0.5  # seconds that a loss is shown before it is read anew


class TrainingBar(TQDMProgressBar):
    """Lightning's bar with the loss, samples per second, the last validation metric and the time left of the run."""

    # Without tqdm's time that remains, which is that of the epoch.
    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"

    def __init__(self, recipe: Recipe, record: Record) -> None:
        super().__init__()
        self.recipe, self.record = recipe, record
        self.began, self.done = time.monotonic(), 0
        self._ended: float | None = None
        self._training, self._batches = 0.0, 0
        self._between, self._gaps = 0.0, 0
        self._loss, self._read = float("nan"), -_OLD

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        super().on_train_epoch_start(trainer, *args)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")
        self.began, self.done = time.monotonic(), 0
        if self._ended is not None:
            self._between, self._gaps = self._between + self.began - self._ended, self._gaps + 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self._training += now - max(self.began, self._ended or 0.0)
        self._ended = now
        self._batches += 1
        self.done += self.recipe.batches.size
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # So that messages begin on a new line.
        if self._train_progress_bar is not None:
            self.train_progress_bar.close()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        items: dict[str, Any] = {}
        if self._batches:
            items["left"] = tqdm.format_interval(self.seconds_left(trainer))
        if time.monotonic() - self._read >= _OLD:  # to read it waits for a GPU
            self._loss = super().get_metrics(trainer, pl_module).get("loss", float("nan"))
            self._read = time.monotonic()
        items["loss"] = self._loss
        items[f"{self.recipe.kind}/s"] = f"{self.done / max(time.monotonic() - self.began, 1e-9):.0f}"
        metric, rows = self.recipe.evaluation.metric, self.record.rows
        if rows and metric in rows[-1]:
            items[metric] = f"{rows[-1][metric]:.3f}"
        return items

    def seconds_left(self, trainer: Trainer) -> float:
        """The seconds left of the whole training, from those of the batches so far and those between two epochs."""
        assert trainer.max_epochs is not None
        epochs = trainer.max_epochs - trainer.current_epoch
        loop: Any = trainer.fit_loop  # Lightning declares its counters by their narrowest type
        batches = int(trainer.num_training_batches) * epochs - loop.epoch_loop.batch_progress.current.ready
        between = self._between / self._gaps if self._gaps else 0.0
        return batches * self._training / self._batches + epochs * between
