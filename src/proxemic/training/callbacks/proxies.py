"""Changes of proxies between epochs: spreading them over the clusters of their class, or changing their pooling."""

from collections.abc import Iterator
from dataclasses import replace

from proxemic.data import ImageSet
from proxemic.losses import ProxyLoss
from proxemic.losses.scores import SoftmaxPooling
from proxemic.training.beginning import cluster_seed, draw_images, embed_training_images
from proxemic.training.callbacks.callback import Callback
from proxemic.training.config import GammaAnnealing
from proxemic.training.recipe import Recipe
from proxemic.training.state import TrainingState


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

    def on_backward_end(self, training: TrainingState) -> None:
        gradient = training.proxies.grad
        if training.epoch < self.after and gradient is not None:
            values = gradient._values() if gradient.is_sparse else gradient
            values.copy_(values.sum(1, keepdim=True).expand_as(values))  # the gradient of one proxy for all K

    def on_epoch_start(self, training: TrainingState) -> None:
        if training.epoch != self.after:
            return
        assert isinstance(training.loss, ProxyLoss)
        embeddings = embed_training_images(training.model, self.images, self.recipe)
        training.check_embeddings(embeddings, "training")
        training.loss.begin_at_clusters(embeddings, self.labels, seed=cluster_seed(self.recipe))
        training.optimizer.state.pop(training.proxies, None)  # it belongs to the old proxies


class AnnealGamma(Callback):
    """Sets γ, the softness of the pooling, for each epoch of the first phase, as `GammaAnnealing` describes."""

    def __init__(self, annealing: GammaAnnealing, end: float) -> None:
        self.annealing, self.end = annealing, end

    def on_train_start(self, training: TrainingState) -> None:
        self.on_epoch_start(training)  # which is not called for an epoch that is resumed

    def on_epoch_start(self, training: TrainingState) -> None:
        if training.phase == 0:
            assert isinstance(training.loss, ProxyLoss)
            pooling = SoftmaxPooling(self.annealing.gamma(training.epoch, self.end))
            training.loss.scoring = replace(training.loss.scoring, pooling=pooling)
