"""Sentences about a recipe that its user should read before it trains."""

from collections.abc import Iterator, Sequence

from proxemic.models import ModelConfig
from proxemic.models.config import TRANSFORMERS
from proxemic.models.timm_models import pretrained_normalization
from proxemic.models.transformers_files import expected_images, find_folder
from proxemic.training.recipe import Recipe


def advice(recipe: Recipe) -> Iterator[str]:
    """What of a recipe is allowed but probably not meant."""
    if recipe.evaluation.select_on == "test":
        yield "WARNING: the epoch is chosen on the test classes; the results are marked so and are too good."
    images, model = recipe.images, recipe.model
    size, learnt = _learnt(model)
    if size is not None and size != images.size:
        yield (
            f"NOTE: images.size is {images.size}, but the pretrained weights of {model.backbone_name} were trained "
            f"with {size}: give --images.size {size} unless you mean it."
        )
    if learnt is None:
        return
    # Grey images come to a pretrained network as three equal colours.
    mean, std = ([images.white * value for value in values] for values in learnt)
    if images.channels == 1:
        mean, std = ([sum(values) / len(values)] for values in (mean, std))
    if images.channel_order == "bgr":
        mean, std = mean[::-1], std[::-1]
    given = [*images.mean, *images.std]
    if any(abs(one - other) > 0.01 * images.white for one, other in zip(given, [*mean, *std], strict=True)):
        yield (
            f"WARNING: images.mean is {_shown(images.mean)} and images.std {_shown(images.std)}, but the pretrained "
            f"weights of {model.backbone_name} were trained with others: give --images.mean '{_shown(mean)}' "
            f"--images.std '{_shown(std)}'."
        )


def _learnt(model: ModelConfig) -> tuple[int | None, tuple[Sequence[float], Sequence[float]] | None]:
    """The size, where the network says it, and mean and standard deviation of what pretrained weights learnt from."""
    if not model.pretrained or model.custom_backbone:
        return None, None
    if not model.backbone_name.startswith(TRANSFORMERS):
        return None, pretrained_normalization(model.backbone_name)
    said = expected_images(find_folder(model.backbone_name, weights=True))
    return said.size, None if said.mean is None or said.std is None else (said.mean, said.std)


def _shown(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in values)}]"
