"""Sentences about a recipe that its user should read before it trains."""

from collections.abc import Iterator, Sequence

from proxemic.models.timm_models import pretrained_normalization
from proxemic.training.recipe import Recipe


def advice(recipe: Recipe) -> Iterator[str]:
    """What of a recipe is allowed but probably not meant."""
    if recipe.evaluation.select_on == "test":
        yield "WARNING: the epoch is chosen on the test classes; the results are marked so and are too good."
    images, model = recipe.images, recipe.model
    learnt = pretrained_normalization(model.backbone_name) if model.pretrained and not model.custom_backbone else None
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


def _shown(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in values)}]"
