"""Heads and proxies that begin at the features of the training images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.data.samplers import derive_seed
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.user_defined import loss_name
from proxemic.models import EmbeddingModel, begin_at_principal_components
from proxemic.models.config import PRINCIPAL
from proxemic.training.embed import embed_images, evaluation_mode, pick_device
from proxemic.training.recipe import Recipe

MOST_IMAGES = 16_384
"""The most training images whose features are looked at."""


class PooledFeatures(nn.Module):
    """The pooled features of a model, as a network of its own that can be run over images."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch features"]:
        return self.model.features(inputs)


def check_start(recipe: Recipe, loss: nn.Module) -> None:
    """Raise `UserError` where proxies cannot begin at the means of their classes, as the recipe says."""
    if recipe.training.start_proxies == "drawn":
        return
    key = "training.start_proxies is class_means"
    if not isinstance(loss, ProxyLoss):
        raise UserError(f"{key}, but {loss_name(loss)} has no proxies: set it to drawn.")
    if loss.proxies_per_class > 1:
        raise UserError(
            f"{key}, where the {loss.proxies_per_class} proxies of a class would stay equal: set it to drawn, or "
            "loss.proxies_per_class to 1."
        )
    if recipe.training.start_from is not None:
        raise UserError(f"{key}, but training.start_from brings the proxies of a run: leave one of them out.")


def start_head(model: EmbeddingModel, loss: nn.Module, images: ImageSet, recipe: Recipe) -> None:
    """Set what of a new run's head and proxies begins at the training images, where the recipe says so.

    Of more than `MOST_IMAGES`, the seed draws as many. A head that came with ``model.weights`` stays as it is. Of
    several processes each computes all of it, and trains with what the first has found.
    """
    components = recipe.model.head_init in PRINCIPAL and not model.has_loaded_head
    means = recipe.training.start_proxies == "class_means"
    if not components and not means:
        return
    labels = images.labels
    if len(images) > MOST_IMAGES:
        generator = torch.Generator().manual_seed(derive_seed(recipe.seed, MOST_IMAGES))
        drawn = torch.randperm(len(images), generator=generator)[:MOST_IMAGES].sort().values
        labels, images = labels[drawn], images.select(drawn)  # whose own labels leave out classes of none
    features = embed_images(
        PooledFeatures(model).to(pick_device(recipe.training.accelerator)),
        images,
        recipe.images,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.batches.workers,
        description="features of the training images",
        precision=recipe.evaluation.precision,
    )
    model.cpu()
    if components:
        begin_at_principal_components(model.head, features, whiten=recipe.model.head_init == "pca-whitened")
    if means:
        assert isinstance(loss, ProxyLoss)
        with torch.no_grad(), evaluation_mode(model):
            loss.begin_at_class_means(model.embed_features(features), labels)
