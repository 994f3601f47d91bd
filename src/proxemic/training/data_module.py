"""Batches for training, in an order that depends on the seed and the epoch alone."""

import signal

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from proxemic.data import ClassBalancedBatches, EmbeddingDataset, ImageSet, RandomBatches, SeededBatches
from proxemic.training.recipe import Recipe

__all__ = ["TrainingData", "ignore_interrupts"]


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
            order = ClassBalancedBatches(images.labels, classes, batches.images_per_class, seed=seed)
        self.batches = SeededBatches(order, seed=seed)

    def train_dataloader(self) -> DataLoader:
        # Worker processes ask for their first batches as soon as the loader is iterated, which is before Lightning
        # sets the epoch: a resumed run must start in its own epoch, after the batches it has seen.
        if self.trainer is not None:
            self.batches.set_epoch(self.trainer.current_epoch)
            loop = self.trainer.fit_loop
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


def ignore_interrupts(_: int = 0) -> None:
    """Leave Ctrl-C to the training process: a terminal sends it to every worker too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
