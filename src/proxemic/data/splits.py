"""Class-disjoint splits, decided by a seed."""

import math

import torch
from jaxtyping import Int64
from torch import Tensor

from proxemic.data.images import ImageSet

_FEWEST_CLASSES = 2  # one class alone neither trains a classifier nor makes a wrong neighbour possible


def split_classes(
    num_classes: int, fraction: float, seed: int, *, name: str = "fraction"
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held_out"]]:
    """Hold out a random fraction of the classes, the same for the same seed on every machine.

    A half class left over stays with the kept ones.

    Args:
        num_classes: number of classes to split.
        fraction: part to hold out, 0 (nothing) to below 1.
        seed: which random split.
        name: what the user calls `fraction`, for the message.

    Returns:
        Kept and held-out classes, each in ascending order.

    Raises:
        ValueError: the fraction is out of range, or leaves fewer than two classes on a side.

    Example:
        >>> kept, held_out = split_classes(6, 0.5, seed=0)
        >>> len(kept), sorted(torch.cat([kept, held_out]).tolist())
        (3, [0, 1, 2, 3, 4, 5])
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"{name} is {fraction}, but it must be at least 0 and below 1.")
    held = math.ceil(num_classes * fraction - 0.5)
    kept = num_classes - held
    if kept < _FEWEST_CLASSES or (fraction > 0 and held < _FEWEST_CLASSES):
        raise ValueError(
            f"{name}={fraction} of {num_classes} classes keeps {kept} and holds out {held}, but each side needs at "
            f"least {_FEWEST_CLASSES}: change {name} or add classes."
        )
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    return order[held:].sort().values, order[:held].sort().values


def hold_out(
    images: ImageSet, fraction: float, seed: int, *, name: str = "validation_fraction"
) -> tuple[ImageSet, ImageSet | None]:
    """Split an image set by class into the kept and the held-out part, None where `fraction` is 0.

    Args:
        images: what to split.
        fraction: part of the classes to hold out, 0 to below 1.
        seed: which random split.
        name: what the user calls `fraction`, for the message.

    Raises:
        ValueError: as in `split_classes`.
    """
    if fraction == 0:
        return images, None
    kept, held_out = split_classes(images.num_classes, fraction, seed, name=name)
    return images.select_classes(kept), images.select_classes(held_out)
