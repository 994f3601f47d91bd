"""The progress bar: loss, images a second, the validation metric."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from proxemic.training.keeper import RunKeeper

__all__ = ["TrainingBar"]


class TrainingBar(TQDMProgressBar):
    """Lightning's bar with the figures that matter here, shown on terminals only.

    Args:
        keeper: Knows the last validation metric.
        batch_size: Images a batch.
        metric: Name of the metric to show.
    """

    def __init__(self, keeper: RunKeeper, batch_size: int, metric: str) -> None:
        super().__init__()
        self.keeper, self.batch_size, self.metric = keeper, batch_size, metric
        self.began, self.done = time.monotonic(), 0

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        super().on_train_epoch_start(trainer, *args)
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")
        self.began, self.done = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.done += self.batch_size
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        items: dict[str, Any] = {"loss": super().get_metrics(trainer, pl_module).get("loss", float("nan"))}
        items["images/s"] = f"{self.done / max(time.monotonic() - self.began, 1e-9):.0f}"
        if self.keeper.rows and self.metric in self.keeper.rows[-1]:
            items[self.metric] = f"{self.keeper.rows[-1][self.metric]:.3f}"
        return items
