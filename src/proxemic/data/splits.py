"""Random splits by class or within classes, and random label noise, all decided by a seed."""

import math
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from proxemic.data.images import ImageSet
from proxemic.ranges import check_range

_FEWEST = 2  # classes, as with one there is nothing to classify and no wrong neighbour; or images of each class


def split_classes(
    num_classes: int, fraction: float, seed: int, *, name: str = "fraction"
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held_out"]]:
    """Hold out a random fraction of the classes, the same for the same seed on every machine.

    Args:
        num_classes: Number of classes to split.
        fraction: Fraction to hold out, 0 (nothing) to below 1; halves are rounded down.
        seed: Seed of the random split.
        name: The name of the setting `fraction`, for messages.

    Returns:
        Kept and held-out classes, each in ascending order.

    Raises:
        ValueError: If the fraction is out of range, or leaves fewer than two classes on a side.

    >>> kept, held_out = split_classes(6, 0.5, seed=0)
    >>> len(kept), sorted(torch.cat([kept, held_out]).tolist())
    (3, [0, 1, 2, 3, 4, 5])
    """
    check_range(name, fraction, "[0, 1)")
    held = math.ceil(num_classes * fraction - 0.5)
    kept = num_classes - held
    if kept < _FEWEST or (fraction > 0 and held < _FEWEST):
        raise ValueError(
            f"{name}={fraction} of {num_classes} classes keeps {kept} and holds out {held}, but each side needs at "
            f"least {_FEWEST}: change {name} or add classes."
        )
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    return order[held:].sort().values, order[:held].sort().values


def hold_out(
    images: ImageSet,
    fraction: float,
    seed: int,
    of: Literal["classes", "images"] = "classes",
    *,
    name: str = "validation_fraction",
) -> tuple[ImageSet, ImageSet | None]:
    """Split off a fraction of the classes, as `split_classes` does, or of the images of every class.

    At least two images of a class are split off, as a single one would have no match, and at least two are kept. A
    class with too few images keeps all. If the fraction is 0, the second part is None.
    """
    if fraction == 0:
        return images, None
    if of == "classes":
        kept, held_out = split_classes(images.num_classes, fraction, seed, name=name)
        return images.select_classes(kept), images.select_classes(held_out)
    check_range(name, fraction, "[0, 1)")
    counts = images.labels.bincount()
    held = (counts * fraction - 0.5).ceil().long().clamp(min=_FEWEST)
    held[counts - held < _FEWEST] = 0
    if not held.any():
        raise ValueError(
            f"{name}={fraction} of the images of each class holds out none, as the largest class has {counts.max()} "
            f"and two are to be left on each side: change {name} or add images."
        )
    _, place_in_class = _shuffled_within(images, torch.Generator().manual_seed(seed))
    is_held = place_in_class < held[images.labels]
    return images.select((~is_held).nonzero().flatten()), images.select(is_held.nonzero().flatten())


def flip_labels(images: ImageSet, fraction: float, seed: int) -> ImageSet:
    """Change the labels of a random fraction of the images; all other classes are equally likely.

    One random image of each class keeps its label, so that no class is left without images. `ValueError` if the
    fraction is not in [0, 1), there is only one class, or too few labels can be changed.
    """
    check_range("training.label_noise", fraction, "[0, 1)")
    wanted = round(fraction * len(images))
    if wanted == 0:
        return images
    classes, labels = images.num_classes, images.labels.clone()
    generator = torch.Generator().manual_seed(seed)
    order, place_in_class = _shuffled_within(images, generator)
    flipped = order[place_in_class[order] > 0][:wanted]
    if classes < 2 or len(flipped) < wanted:
        raise ValueError(
            f"training.label_noise is {fraction}, which gives {wanted:,} of {len(images):,} training {images.kind} "
            f"another label, but one of each of the {classes:,} classes keeps its own, and there must be two classes: "
            "lower it."
        )
    labels[flipped] = (labels[flipped] + torch.randint(1, classes, (wanted,), generator=generator)) % classes
    return replace(images, labels=labels)


def _shuffled_within(
    images: ImageSet, generator: torch.Generator
) -> tuple[Int64[Tensor, " images"], Int64[Tensor, " images"]]:
    """Draw a random order of all images; return it, and the rank of each image among those of its class."""
    order = torch.randperm(len(images), generator=generator)
    counts = images.labels.bincount()
    place_in_class = torch.empty_like(order)
    by_class = order[images.labels[order].argsort(stable=True)]
    place_in_class[by_class] = torch.arange(len(images)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return order, place_in_class
