"""How a run begins: from the features of its images, with the weights of another run, or where a run has stopped."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from proxemic.data import ImageSet, Splits
from proxemic.data.samplers import derive_seed
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.margins import MARGINS
from proxemic.losses.scores import SoftmaxPooling
from proxemic.losses.user_defined import loss_name
from proxemic.models import EmbeddingModel, begin_at_principal_components, load_model
from proxemic.models.config import PRINCIPAL
from proxemic.models.lora import load_merged_state
from proxemic.runs.directory import RunDirectory, split_fingerprint
from proxemic.runs.embed import embed_images, evaluation_mode, pick_device
from proxemic.training.recipe import Recipe

MOST_IMAGES = 16_384
"""Largest number of training images whose features are computed."""


class PooledFeatures(nn.Module):
    """A network that returns the pooled features of a model."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch features"]:
        return self.model.features(inputs)


def check_start(recipe: Recipe, loss: nn.Module) -> None:
    """Raise `UserError` if the loss does not allow the ``start_proxies`` or the ``anneal_gamma`` of the recipe."""
    start = recipe.training.start_proxies
    key = f"training.start_proxies is {start}"
    pooled = isinstance(loss, ProxyLoss) and isinstance(loss.scoring.pooling, SoftmaxPooling)
    if recipe.training.anneal_gamma is not None and not pooled:
        raise UserError(
            f"training.anneal_gamma is given, but {loss_name(loss)} has no pooling of proxies with a gamma: leave it "
            "null, or take a loss with one, as SoftTripleLoss, or loss.pooling SoftmaxPooling."
        )
    if start == "drawn":
        return
    if not isinstance(loss, ProxyLoss):
        raise UserError(f"{key}, but {loss_name(loss)} has no proxies: set it to drawn.")
    if loss.proxies_per_class > 1 and start == "class_means":
        raise UserError(
            f"{key}, where the {loss.proxies_per_class} proxies of a class would stay equal: set it to k_means or "
            "drawn, or loss.proxies_per_class to 1."
        )
    if recipe.training.start_from is not None:
        raise UserError(f"{key}, but training.start_from brings the proxies of a run: leave one of them out.")


def start_head(model: EmbeddingModel, loss: nn.Module, images: ImageSet, recipe: Recipe) -> None:
    """Set the head and the proxies of a new run from the training images, if the recipe says so.

    At most `MOST_IMAGES` are used, drawn by the seed. A head loaded from ``model.weights`` is not changed. Each process
    computes everything, but all train with the result of the first process.
    """
    components = recipe.model.head_init in PRINCIPAL and not model.has_loaded_head
    start = recipe.training.start_proxies
    if recipe.training.spread_after > 0:
        assert isinstance(loss, ProxyLoss)
        loss.proxies.data.copy_(loss.proxies.data[:, :1].expand_as(loss.proxies))  # they move alike until then
        start = "drawn"
    if not components and start == "drawn":
        return
    images, labels = draw_images(images, recipe.seed)
    features = embed_by_recipe(recipe, PooledFeatures(model), images, "features of the training images")
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
    """Return all images with their labels, or `MOST_IMAGES` random ones, in which some classes may be missing."""
    if len(images) <= MOST_IMAGES:
        return images, images.labels
    generator = torch.Generator().manual_seed(derive_seed(seed, MOST_IMAGES))
    drawn = torch.randperm(len(images), generator=generator)[:MOST_IMAGES].sort().values
    return images.select(drawn), images.labels[drawn]  # the labels of a selection are renumbered


def cluster_seed(recipe: Recipe) -> int:
    """Derive the seed of k-means."""
    return derive_seed(recipe.seed, 2, MOST_IMAGES)


def embed_by_recipe(
    recipe: Recipe, network: nn.Module, images: ImageSet, description: str
) -> Float[Tensor, "images dim"]:
    """Embed images on the device and in the precision of a recipe."""
    return embed_images(
        network.to(pick_device(recipe.training.accelerator)),
        images,
        recipe.images,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.batches.workers,
        description=description,
        precision=recipe.evaluation.precision,
    )


def embed_training_images(model: nn.Module, images: ImageSet, recipe: Recipe) -> Float[Tensor, "images dim"]:
    """Embed training images without augmentation; the processes share the work, and each gets all embeddings."""
    return embed_images(
        model,
        images,
        recipe.images,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.batches.workers,
        description="training images",
        shared=True,
    )


def start_from(run: RunDirectory, model: EmbeddingModel, loss: nn.Module, splits: Splits) -> str:
    """Load the selected weights of another run into a network and a loss; return a sentence that says which ones.

    The whole loss is loaded if both runs have the same images. Otherwise only the proxies of classes with the same
    names are loaded. Nothing is loaded into a loss of another kind or shape.
    """
    run.check_run()
    if run.keeps_features:
        raise UserError(
            f"{run.path} keeps the network before training, without head and proxies, as no epoch was better: begin "
            f"with its backbone, by --model.weights {run.model}, or train it anew with a lower --optim.lr."
        )
    if not run.loss.exists():
        raise UserError(
            f"{run.path} has no selected weights yet: let it finish an epoch first (proxemic train --resume)."
        )
    weights, state = (
        {name: value for name, value in values.items() if name not in MARGINS}  # a loss takes these from its recipe
        for values in (run.read_loss(), loss.state_dict())
    )
    same = run.has_images(split_fingerprint(splits))
    classes = None if same else run.read_classes()
    if not same and classes is None:
        raise UserError(
            f"The images are not those of {run.path}, and the run does not say which classes its proxies belong to "
            f"(there is no {run.classes}): begin with its network alone, by --model.weights {run.model}."
        )
    names = splits.train.class_names if classes is None else classes.train
    try:
        load_merged_state(model, load_model(run.path, model.config.custom_backbone)[0].state_dict())
    except RuntimeError as error:
        raise UserError(
            f"The network of {run.path} does not fit this recipe's model ({' '.join(str(error).split())[:200]}): give "
            f"it the same model, or take what fits by --model.weights {run.model}."
        ) from error
    begin = f"Starting from {run.path}: its network"
    if same and _shapes(weights) == _shapes(state):
        loss.load_state_dict(loss.state_dict() | weights)
        return f"{begin} and its loss, as the images are the same."
    kept = _keep_proxies(loss, splits.train.class_names, weights, names)
    if kept is None:
        return f"{begin}; the loss is new, as that of the run has another kind or shape."
    count = splits.train.num_classes
    return f"{begin}; {kept} of {count:,} classes keep their proxies, by name, and {count - kept:,} get new ones."


@torch.no_grad()
def _keep_proxies(
    loss: nn.Module, classes: Sequence[str], weights: dict[str, Tensor], names: Sequence[str]
) -> int | None:
    """Copy the proxies of the classes with the same names and return how many; None if the losses differ in kind.

    Only the loss's own parameters, which have a row per class, are copied, and not those of its submodules, such as a
    graph network.
    """
    parameters = dict(loss.named_parameters(recurse=False))
    values = {name: value for name, value in weights.items() if name in parameters}
    if not parameters or _shapes(values) != {n: [len(names), *v.shape[1:]] for n, v in parameters.items()}:
        return None
    place = {name: row for row, name in enumerate(names)}
    kept = [(row, place[name]) for row, name in enumerate(classes) if name in place]
    new, old = torch.tensor(kept, dtype=torch.int64).view(-1, 2).T
    for name, parameter in parameters.items():
        parameter[new] = values[name][old].to(parameter.dtype)
    return len(kept)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in tensors.items()}


def trained_before(recipe: Recipe) -> frozenset[str]:
    """Return the names of the classes that the recipe's initial weights were trained on, as far as known."""
    weights = recipe.model.weights
    earlier = [recipe.training.start_from, None if weights is None else Path(weights).expanduser().parent]
    known = [RunDirectory(path).read_classes() for path in earlier if path is not None]
    return frozenset().union(*(classes.trained for classes in known if classes is not None))


def load_loss(run: RunDirectory, loss: nn.Module) -> None:
    """Load the weights of the loss at the selected epoch of a run."""
    try:
        loss.load_state_dict(run.read_loss())
    except RuntimeError as error:
        message = " ".join(str(error).split())[:200]
        raise UserError(f"The weights of {run.path} do not fit this recipe's loss: {message}") from error
