"""Batches for training; their order depends only on the seed and the epoch."""

from torch.utils.data import DataLoader

from proxemic.arguments import call_with_known
from proxemic.data import ClassBalancedBatches, EmbeddingDataset, ImageSet, RandomBatches
from proxemic.data.samplers import SeededBatches
from proxemic.errors import UserError
from proxemic.runs.embed import pick_device
from proxemic.runs.workers import worker_settings
from proxemic.training.recipe import Recipe


class TrainingData:
    """Loads the training images of a run; each process gets its part of every batch."""

    def __init__(self, images: ImageSet, recipe: Recipe, *, rank: int = 0, world: int = 1) -> None:
        self.images, self.recipe = images, recipe
        batches, seed, size = recipe.batches, recipe.seed, recipe.batches.size
        if batches.sampler is not None:
            order = call_with_known(
                batches.sampler,
                labels=images.labels,
                num_images=len(images),
                batch_size=batches.size,
                seed=seed,
                categories=images.categories,
            )
        elif batches.images_per_class is None:
            order = RandomBatches(len(images), batches.size, seed=seed)
            size = order.batch_size
        else:
            classes = batches.size // batches.images_per_class
            if classes > images.num_classes:
                raise UserError(
                    f"batches.size / batches.images_per_class asks for {batches.size}/{batches.images_per_class} = "
                    f"{classes} classes a batch, but there are {images.num_classes} training classes: lower the "
                    "first or raise the second."
                )
            order = ClassBalancedBatches(images.labels, classes, batches.images_per_class, seed=seed)
        if size < world:
            raise UserError(
                f"batches.size is {size} in effect, but {world} processes share each batch: raise it to {world} or "
                "more, or start fewer processes."
            )
        # All processes must run the network equally often.
        if size // world < batches.micro_batches:
            raise UserError(
                f"batches.micro_batches is {batches.micro_batches}, but each process has only {size // world} "
                f"of the {size} images of a batch: lower it, or raise batches.size."
            )
        self.batches = SeededBatches(order, seed=seed, rank=rank, world=world)
        self.even = size % world == 0 and batches.sampler is None

    def loader(self) -> DataLoader:
        """Return a loader of the epoch that is set in ``batches``."""
        workers, images = self.recipe.batches.workers, self.recipe.images
        return DataLoader(
            EmbeddingDataset(
                self.images, self.recipe.augment.training(images), self.recipe.vectors, images.reduced_side, images.bits
            ),
            batch_sampler=self.batches,
            persistent_workers=workers > 0,
            **worker_settings(workers, pick_device(self.recipe.training.accelerator)),
        )
