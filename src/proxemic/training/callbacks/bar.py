"""The progress bar of a training run."""

import math
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor
from tqdm import tqdm

from proxemic.training.record import Session

_SHOWN = 0.2  # seconds between updates: drawing takes longer than a small step, and reading the loss waits for a GPU


class TrainingBar(TQDMProgressBar):
    """Lightning's progress bar; it shows the loss, samples per second, the last validation metric and the time left."""

    # Without tqdm's remaining time, which is only for the epoch.
    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._began, self._first_step = 0.0, 0
        self._loss: Tensor | float = math.nan
        self._drawn = -_SHOWN

    def on_train_start(self, *args: Any) -> None:
        super().on_train_start(*args)
        self._began, self._first_step = time.monotonic(), self.trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        super().on_train_epoch_start(trainer, *args)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # So that messages begin on a new line.
        if self._train_progress_bar is not None:
            self.train_progress_bar.close()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._loss = outputs["loss"]
        if trainer.is_last_batch or time.monotonic() - self._drawn >= _SHOWN:
            super().on_train_batch_end(trainer, pl_module, outputs, *args, **kwargs)
            self._drawn = time.monotonic()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        items: dict[str, Any] = {}
        steps = trainer.global_step - self._first_step
        if steps and trainer.max_epochs is not None:
            left = int(trainer.num_training_batches) * trainer.max_epochs - trainer.global_step
            items["left"] = tqdm.format_interval(left * (time.monotonic() - self._began) / steps)
        items["loss"] = float(self._loss)
        rate = self.train_progress_bar.format_dict["rate"] or 0.0
        recipe, rows = self.session.recipe, self.session.record.rows
        items[f"{recipe.kind}/s"] = f"{rate * recipe.batches.size:.0f}"
        metric = recipe.evaluation.metric
        if rows and metric in rows[-1]:
            items[metric] = f"{rows[-1][metric]:.3f}"
        return items
