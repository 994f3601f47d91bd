"""Wrong labels at random, to measure how much of them a loss stands."""

from dataclasses import replace

import torch

from proxemic.data.images import ImageSet
from proxemic.data.splits import check_fraction


def flip_labels(images: ImageSet, fraction: float, seed: int) -> ImageSet:
    """Give a fraction of the images, drawn by the seed, another label; every other class is equally likely.

    One image of each class, also drawn, keeps its label, so that no class is left without images.

    Raises:
        ValueError: If the fraction is not in [0, 1), there is one class alone, or so many images are not to be had.

    >>> import numpy as np
    >>> from proxemic.data import ArrayPixels
    >>> images = ImageSet.from_names(ArrayPixels(np.zeros((8, 4, 4), np.uint8)), [*"aaaabbbb"])
    >>> flip_labels(images, 0.25, seed=0).labels.ne(images.labels).sum()
    tensor(2)
    """
    check_fraction("training.label_noise", fraction)
    wanted = round(fraction * len(images))
    if wanted == 0:
        return images
    classes, labels = images.num_classes, images.labels.clone()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    by_class = order[labels[order].argsort(stable=True)]
    counts = labels.bincount()
    kept = torch.zeros(len(images), dtype=torch.bool)
    kept[by_class[counts.cumsum(0) - counts]] = True  # the first of each class, in that order
    flipped = order[~kept[order]][:wanted]
    if classes < 2 or len(flipped) < wanted:
        raise ValueError(
            f"training.label_noise is {fraction}, which gives {wanted:,} of {len(images):,} training {images.kind} "
            f"another label, but one of each of the {classes:,} classes keeps its own, and there must be two classes: "
            "lower it."
        )
    labels[flipped] = (labels[flipped] + torch.randint(1, classes, (wanted,), generator=generator)) % classes
    return replace(images, labels=labels)
