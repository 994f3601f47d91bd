"""Load pretrained networks by name, to search images without training."""

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from proxemic.addresses import TIMM, TRANSFORMERS, is_pretrained_name
from proxemic.caches import cache_folder
from proxemic.files import read_json
from proxemic.runs.library_preprocessing import AnyPreprocessing, is_current, pretrained_preprocessing

if TYPE_CHECKING:
    from proxemic.models import EmbeddingModel

DEFAULT_MODEL = "timm:tf_efficientnet_lite0"
"""The default model of a gallery; its weights come with the extra ``pretrained``."""


def model_path(model: str | os.PathLike[str]) -> Path:
    """Return the path of a model; a missing pretrained network is first written to the user's cache folder.

    Args:
        model: A path, which is returned unchanged; ``timm:NAME`` for any network of timm that has pretrained weights;
            ``hf:NAME`` for a vision network on the Hugging Face hub, such as ``hf:facebook/dinov2-small``, or
            ``hf:FOLDER`` for one that `save_pretrained` wrote.

    Raises:
        UserError: If weights are neither installed nor in a cache, and cannot be downloaded.
        ValueError: If there is no such network, or its files are damaged.
        ImportError: If timm or transformers is missing.
    """
    if not is_pretrained_name(model):
        return Path(model)
    folder = kept_at(str(model))
    file = folder / "model.json"  # which is written last
    if not file.is_file() or not is_current(read_json(file).get("preprocessing", {})):
        from proxemic.models import save_model

        network, preprocessing = load_pretrained(str(model))
        save_model(folder, network, preprocessing.as_dict())
    return folder


def sees_only(model: str) -> bool:
    """Return whether the named pretrained network takes only images, and no texts to compare them with."""
    if model.startswith(TIMM):
        return True
    from proxemic.models.backbones.transformers_models import find_folder

    return "text_config" not in read_json(find_folder(model, weights=False) / "config.json")


def kept_at(model: str) -> Path:
    """Return the path of a model, even if `model_path` has not written it yet."""
    if not is_pretrained_name(model):
        return Path(model)
    name = re.sub(r"[^\w.]+", "-", model).strip("-")
    if (folder := Path(model.removeprefix(TRANSFORMERS)).expanduser()).is_dir():  # its files may change
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir())
        name = f"{folder.name}-{hashlib.sha256(repr((folder.absolute(), files)).encode()).hexdigest()[:16]}"
    return _cache() / name


def is_cached(path: Path) -> bool:
    """Return whether a path belongs to a pretrained network in the user's cache folder, which all galleries share."""
    return path.is_relative_to(_cache())


def _cache() -> Path:
    return cache_folder("models")


def load_pretrained(name: str) -> "tuple[EmbeddingModel, AnyPreprocessing]":
    """Load a pretrained network without its classifier, and the preprocessing with which it was trained.

    The embeddings are the pooled features, scaled to unit length; for a network with a text tower (CLIP, SigLIP), they
    are the features that images and texts share. The arguments and errors are those of `model_path`.
    """
    from proxemic.models import ModelConfig, build_model
    from proxemic.models.backbones.transformers_models import find_folder, has_text_tower
    from proxemic.models.model import without_head

    of_timm = name.startswith(TIMM)
    preprocessing = pretrained_preprocessing(name)
    _, height, width = preprocessing.evaluation()(Image.new("RGB", (64, 64))).shape
    # A vision transformer of timm is built for the size of its images; the head is taken off again.
    pooling = "avg" if of_timm else "joint" if has_text_tower(find_folder(name, weights=True)) else "pooler"
    side = height if height == width else None  # networks for other images are built for these
    config = ModelConfig(name.removeprefix(TIMM), pooling=pooling, pretrained=True, image_size=side)
    return without_head(build_model(config)).eval(), preprocessing
