"""Features of a frozen backbone: training reads them instead of the images, as they are the same in every epoch."""

import hashlib
import inspect
import json
import re
from contextlib import nullcontext

import safetensors.torch

from proxemic.data import ImageSet
from proxemic.data.pixels import FilePixels
from proxemic.data.transforms import Augmentation
from proxemic.data.vectors import VectorArray, Vectors
from proxemic.models import EmbeddingModel
from proxemic.runs.embed import embed_images, pick_device
from proxemic.training.beginning import PooledFeatures
from proxemic.training.components import Components
from proxemic.training.parts.storage import read_checkpoint
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session


def trains_on_features(recipe: Recipe) -> bool:
    """Return whether only the head is trained, and images are not augmented, so that their features do not change."""
    model = recipe.model
    is_frozen = model.train == "head" and model.lora is None and model.pooling != "gem"  # whose power is trained
    return is_frozen and not model.takes_vectors and recipe.augment == Augmentation()


def read_features(session: Session, components: Components, held_out: ImageSet | None) -> ImageSet | None:
    """Replace the training images by features, and return the held-out images as features.

    The features of image files are kept in the user's cache, as all embeddings are: later runs with any head, loss or
    rates read them, and a killed run loses a second of work.
    """
    checkpoint = session.run.checkpoint
    if checkpoint.exists():  # its backbone is not the recipe's if the run has started from another run
        components.model.load_state_dict(read_checkpoint(checkpoint)["model"])
    data, model = components.data, components.model
    sets = [_as_features(session, model, images) for images in (data.images, held_out) if images is not None]
    data.images = sets[0]
    model.cpu()
    session.report("Only the head is trained, and no image is augmented: training reads the features of the images.")
    return sets[1] if len(sets) > 1 else None


def _as_features(session: Session, model: EmbeddingModel, images: ImageSet) -> ImageSet:
    recipe, pixels = session.recipe, images.pixels
    is_files = isinstance(pixels, FilePixels)
    if isinstance(pixels, FilePixels):  # decoded images of a cache may be smaller
        pixels = FilePixels(pixels.paths, pixels.boxes)
    # The first process keeps the features of files, for the others to read; those of other images are shared.
    with session.processes.main_process_first() if is_files else nullcontext():
        features = embed_images(
            PooledFeatures(model).to(pick_device(recipe.training.accelerator)),
            images.with_pixels(pixels),
            recipe.images,
            batch_size=recipe.evaluation.batch_size,
            workers=recipe.batches.workers,
            description="features",
            shared=not is_files,
            precision=recipe.evaluation.precision,
            checksum=network_key(model) if is_files else None,
        )
    return images.with_pixels(Vectors(VectorArray(features)))


def network_key(model: EmbeddingModel) -> str:
    """Hash a backbone and its pooling, with their weights and the source code of a class of the user's own."""
    config = model.config
    settings = (config.backbone_name, config.backbone_args, config.pooling, config.image_size, config.in_channels)
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    digests = {
        name: hashlib.sha256(safetensors.torch.save({"": value.contiguous()})).hexdigest()
        for name, value in state.items()
    }
    described = getattr(model.backbone, "description", dict)()  # the content of the network's own file
    parts = ["features", settings, described, _describe(config.custom_backbone), digests]
    return hashlib.sha256(json.dumps(parts, default=_describe).encode()).hexdigest()


def _describe(thing: object) -> object:
    if thing is None:
        return None
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        source = inspect.getsource(kind)  # pyright: ignore[reportArgumentType]
    except (OSError, TypeError):  # not in a file, as if typed in a shell, or not Python
        source = ""
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(thing)), source]
