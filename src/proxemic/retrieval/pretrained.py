"""Networks that others have trained, by their names: pictures can be searched before anything is trained here."""

from collections.abc import Sequence
from typing import TypeGuard

from proxemic.data import Preprocessing
from proxemic.models import EmbeddingModel, ModelConfig, build_model
from proxemic.models.embedding import without_head
from proxemic.models.transformers_files import expected_images, find_folder

TIMM, HUGGING_FACE = "timm:", "hf:"
DEFAULT_MODEL = "timm:tf_efficientnet_lite0"
"""The model of a gallery for which none is given: its weights come with the extra ``pretrained``."""


def is_pretrained_name(model: object) -> TypeGuard[str]:
    """Return whether a model is ``timm:NAME``, ``hf:NAME`` or ``hf:FOLDER``.

    >>> is_pretrained_name("timm:resnet50"), is_pretrained_name("runs/photos")
    (True, False)
    """
    return isinstance(model, str) and model.startswith((TIMM, HUGGING_FACE))


def load_pretrained(name: str) -> tuple[EmbeddingModel, Preprocessing]:
    """Load a pretrained network without its classifier, and the preprocessing that it was trained with.

    Its embeddings are its pooled features, of unit length.

    Args:
        name: ``timm:NAME`` with any network of timm that has pretrained weights, ``hf:NAME`` with a vision network on
            the Hugging Face hub, such as ``hf:facebook/dinov2-small``, or ``hf:FOLDER``, which `save_pretrained` wrote.

    Raises:
        UserError: If the weights are neither installed nor in a cache, and cannot be fetched.
        ValueError: If there is no such network, or its files are damaged.
        ImportError: If timm or transformers is missing.
    """
    backbone = name.removeprefix(TIMM)
    preprocessing = _of_timm(backbone) if name.startswith(TIMM) else _of_transformers(name)
    pooling = "avg" if name.startswith(TIMM) else "pooler"
    # A vision transformer of timm is built for the size of its images; the head is taken off again.
    config = ModelConfig(backbone, pooling=pooling, pretrained=True, image_size=preprocessing.size)
    return without_head(build_model(config)).eval(), preprocessing


def _of_timm(name: str) -> Preprocessing:
    from proxemic.models.timm_models import check_timm_name

    check_timm_name(name)
    from timm.data import resolve_data_config
    from timm.models import get_pretrained_cfg

    known = get_pretrained_cfg(name)
    said = resolve_data_config({}, pretrained_cfg=known.to_dict() if known else {})
    size = said["input_size"][-1]
    squeezed = said["crop_mode"] == "squash"
    return _preprocessing(size, None if squeezed else int(size / said["crop_pct"]), said["mean"], said["std"])


def _of_transformers(name: str) -> Preprocessing:
    said = expected_images(find_folder(name, weights=True))
    return _preprocessing(said.size or 224, "auto", said.mean, said.std)


def _preprocessing(
    size: int, resize: int | str | None, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Preprocessing:
    normalization = {} if mean is None or std is None else {"mean": tuple(mean), "std": tuple(std)}
    return Preprocessing(size=size, resize=resize, **normalization)  # type: ignore[arg-type]
