"""Heads that begin with the features of the training images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.data.samplers import derive_seed
from proxemic.models import EmbeddingModel, begin_at_principal_components
from proxemic.models.config import PRINCIPAL
from proxemic.training.embed import embed_images, pick_device
from proxemic.training.recipe import Recipe

MOST_IMAGES = 16_384
"""The most training images from whose features principal components are computed."""


class PooledFeatures(nn.Module):
    """The pooled features of a model, as a network of its own that can be run over images."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch features"]:
        return self.model.features(inputs)


def start_head(model: EmbeddingModel, images: ImageSet, recipe: Recipe) -> None:
    """Set the head of a new run's network to principal components of the training images, where the recipe says so.

    Of more than `MOST_IMAGES`, the seed draws as many. A head that came with ``model.weights`` stays as it is. Of
    several processes each computes all of it, and trains with what the first has found.
    """
    if recipe.model.head_init not in PRINCIPAL or model.has_loaded_head:
        return
    if len(images) > MOST_IMAGES:
        generator = torch.Generator().manual_seed(derive_seed(recipe.seed, MOST_IMAGES))
        drawn = torch.randperm(len(images), generator=generator)[:MOST_IMAGES]
        images = images.select(drawn.sort().values)
    features = embed_images(
        PooledFeatures(model).to(pick_device(recipe.training.accelerator)),
        images,
        recipe.images,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.batches.workers,
        description="principal components",
        precision=recipe.evaluation.precision,
    )
    begin_at_principal_components(model.cpu().head, features, whiten=recipe.model.head_init == "pca-whitened")
