"""Heads and proxies that begin at the features of the training images."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.data.samplers import derive_seed
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.scores import SoftmaxPooling
from proxemic.losses.user_defined import loss_name
from proxemic.models import EmbeddingModel, begin_at_principal_components
from proxemic.models.config import PRINCIPAL
from proxemic.runs.embed import embed_images, evaluation_mode, join_shares, pick_device
from proxemic.runs.processes import Processes
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
    """Raise `UserError` where proxies cannot begin where the recipe says, or their pooling cannot change as it says."""
    pooled = isinstance(loss, ProxyLoss) and isinstance(loss.scoring.pooling, SoftmaxPooling)
    if recipe.training.anneal_gamma is not None and not pooled:
        raise UserError(
            f"training.anneal_gamma is given, but {loss_name(loss)} has no pooling of proxies with a gamma: leave it "
            "null, or take a loss with one, as SoftTripleLoss, or loss.pooling SoftmaxPooling."
        )
    if recipe.training.start_proxies == "drawn":
        return
    key = f"training.start_proxies is {recipe.training.start_proxies}"
    if not isinstance(loss, ProxyLoss):
        raise UserError(f"{key}, but {loss_name(loss)} has no proxies: set it to drawn.")
    if loss.proxies_per_class > 1 and recipe.training.start_proxies == "class_means":
        raise UserError(
            f"{key}, where the {loss.proxies_per_class} proxies of a class would stay equal: set it to k_means or "
            "drawn, or loss.proxies_per_class to 1."
        )
    if recipe.training.start_from is not None:
        raise UserError(f"{key}, but training.start_from brings the proxies of a run: leave one of them out.")


def start_head(model: EmbeddingModel, loss: nn.Module, images: ImageSet, recipe: Recipe) -> None:
    """Set what of a new run's head and proxies begins at the training images, where the recipe says so.

    Of more than `MOST_IMAGES`, the seed draws as many. A head that came with ``model.weights`` stays as it is. Of
    several processes each computes all of it, and trains with what the first has found.
    """
    components = recipe.model.head_init in PRINCIPAL and not model.has_loaded_head
    start = recipe.training.start_proxies
    if recipe.training.spread_after > 0:
        assert isinstance(loss, ProxyLoss)
        loss.proxies.data.copy_(loss.proxies.data[:, :1].expand_as(loss.proxies))  # which move as one until then
        start = "drawn"
    if not components and start == "drawn":
        return
    images, labels = draw_images(images, recipe.seed)
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
    if start != "drawn":
        assert isinstance(loss, ProxyLoss)
        with torch.no_grad(), evaluation_mode(model):
            embeddings = model.embed_features(features)
        if start == "class_means":
            loss.begin_at_class_means(embeddings, labels)
        else:
            loss.begin_at_clusters(embeddings, labels, seed=cluster_seed(recipe))


def draw_images(images: ImageSet, seed: int) -> tuple[ImageSet, Int64[Tensor, " drawn"]]:
    """All images, or `MOST_IMAGES` that the seed draws, with their labels, which may leave out classes."""
    if len(images) <= MOST_IMAGES:
        return images, images.labels
    generator = torch.Generator().manual_seed(derive_seed(seed, MOST_IMAGES))
    drawn = torch.randperm(len(images), generator=generator)[:MOST_IMAGES].sort().values
    return images.select(drawn), images.labels[drawn]  # the own labels of the selection close up


def cluster_seed(recipe: Recipe) -> int:
    """The seed of k-means."""
    return derive_seed(recipe.seed, 2, MOST_IMAGES)


def embed_training_images(
    model: nn.Module, images: ImageSet, recipe: Recipe, processes: Processes
) -> Float[Tensor, "images dim"]:
    """Embed training images without augmentation; the processes share them, and all get all embeddings."""
    size = recipe.evaluation.batch_size
    share = embed_images(
        model,
        images,
        recipe.images,
        batch_size=size,
        workers=recipe.batches.workers,
        description="training images",
        rank=processes.rank,
        world=processes.world,
    )
    return join_shares(share, len(images), size, processes.world)
