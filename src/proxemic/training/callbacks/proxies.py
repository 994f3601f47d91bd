"""Changes of proxies between epochs: spreading them over the clusters of their class, or changing their pooling."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from proxemic.data import ImageSet
from proxemic.losses import ProxyLoss
from proxemic.losses.scores import SoftmaxPooling
from proxemic.training.beginning import cluster_seed, draw_images, embed_training_images
from proxemic.training.config import GammaAnnealing
from proxemic.training.module import EmbeddingTask, check_embeddings
from proxemic.training.recipe import Recipe


def proxy_callbacks(recipe: Recipe, images: ImageSet, loss: object) -> Iterator[Callback]:
    """Build the callbacks of a recipe that change proxies between epochs."""
    if recipe.training.spread_after > 0:
        yield SpreadProxies(recipe, images)
    if recipe.training.anneal_gamma is not None:
        assert isinstance(loss, ProxyLoss)
        assert isinstance(loss.scoring.pooling, SoftmaxPooling)
        yield AnnealGamma(recipe.training.anneal_gamma, loss.scoring.pooling.gamma)


class SpreadProxies(Callback):
    """Moves all proxies of a class alike for the first epochs, then spreads them over the clusters of its images.

    Both depend only on the epoch and the weights, so a resumed run gives the same result.
    """

    def __init__(self, recipe: Recipe, images: ImageSet) -> None:
        self.recipe, self.after = recipe, recipe.training.spread_after
        self.images, self.labels = draw_images(images, recipe.seed)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, EmbeddingTask)
        gradient = pl_module.proxies.grad
        if trainer.current_epoch < self.after and gradient is not None:
            values = gradient._values() if gradient.is_sparse else gradient
            values.copy_(values.sum(1, keepdim=True).expand_as(values))  # the gradient of one proxy for all K

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch != self.after:
            return
        task = pl_module
        assert isinstance(task, EmbeddingTask)
        assert isinstance(task.loss, ProxyLoss)
        embeddings = embed_training_images(task.model, self.images, self.recipe)
        check_embeddings(embeddings, "training", task, trainer.current_epoch)
        task.loss.begin_at_clusters(embeddings, self.labels, seed=cluster_seed(self.recipe))
        trainer.optimizers[0].state.pop(task.proxies, None)  # it belongs to the old proxies


class AnnealGamma(Callback):
    """Sets γ, the softness of the pooling, for each epoch, as `GammaAnnealing` describes."""

    def __init__(self, annealing: GammaAnnealing, end: float) -> None:
        self.annealing, self.end = annealing, end

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        # In every step, because no start of an epoch is called when it is resumed in its middle.
        task = pl_module
        assert isinstance(task, EmbeddingTask)
        if not task.in_second_phase:
            assert isinstance(task.loss, ProxyLoss)
            pooling = SoftmaxPooling(self.annealing.gamma(trainer.current_epoch, self.end))
            task.loss.scoring = replace(task.loss.scoring, pooling=pooling)
