"""Batches for training, in an order that depends on the seed and the epoch alone."""

import signal
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader

from proxemic.data import ClassBalancedBatches, EmbeddingDataset, ImageSet, RandomBatches, SeededBatches
from proxemic.errors import UserError
from proxemic.training.recipe import Recipe

__all__ = ["EpochOrder", "TrainingData", "ignore_interrupts"]


class TrainingData(LightningDataModule):
    """The training images of a run.

    Args:
        images: Training images with labels 0 to C - 1.
        recipe: Transforms, batches and seed.
    """

    def __init__(self, images: ImageSet, recipe: Recipe) -> None:
        super().__init__()
        self.images, self.recipe = images, recipe
        batches, seed = recipe.batches, recipe.seed
        if batches.images_per_class is None:
            order = RandomBatches(len(images), batches.size, seed=seed)
        else:
            classes = batches.size // batches.images_per_class
            if classes > images.num_classes:
                raise UserError(
                    f"batches.size / batches.images_per_class asks for {batches.size}/{batches.images_per_class} = "
                    f"{classes} classes a batch, but there are {images.num_classes} training classes: lower the "
                    "first or raise the second."
                )
            order = ClassBalancedBatches(images.labels, classes, batches.images_per_class, seed=seed)
        self.batches = SeededBatches(order, seed=seed)

    def train_dataloader(self) -> DataLoader:
        # A resumed run starts in its own epoch, after the batches it has seen: Lightning iterates the loader at once.
        if self.trainer is not None:
            loop: Any = self.trainer.fit_loop  # Lightning declares its counters by their narrowest type
            # Not trainer.current_epoch, which is one behind in a checkpoint of the end of an epoch.
            self.batches.set_epoch(loop.epoch_progress.current.processed)
            if loop.restarting:
                self.batches.skip(loop.epoch_loop.batch_progress.current.processed)
        workers = self.recipe.batches.workers
        return DataLoader(
            EmbeddingDataset(self.images, self.recipe.augment.training(self.recipe.images)),
            batch_sampler=self.batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=ignore_interrupts,
        )


class EpochOrder(Callback):
    """Gives every epoch its own order and augmentation: Lightning tells epochs to its own samplers only."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.data.batches.set_epoch(trainer.current_epoch)


def ignore_interrupts(_: int = 0) -> None:
    """Leave Ctrl-C to the training process: a terminal sends it to every worker too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
