"""Digits: scikit-learn's handwritten digits, for plots of embeddings without a download."""

from dataclasses import dataclass

import numpy as np
import torch

from proxemic.data.images import ImageSet, ImageSource, Splits
from proxemic.data.pixels import ArrayPixels
from proxemic.data.rows import Rows
from proxemic.extras import optional_dependency
from proxemic.ranges import SEEDS, check_fields


@dataclass(frozen=True)
class Digits(ImageSource):
    """1,797 handwritten digits of 8 by 8 pixels, bright on black, which are part of scikit-learn.

    Training and test have the same classes, so the results say nothing about retrieval of unseen classes: use this data
    set for plots of embeddings in two or three dimensions.

    Args:
        validation_fraction: Fraction of the training images held out for validation, 0 (none) to below 1.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If a number is out of range.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.

    >>> splits = Digits().load()
    >>> len(splits.train), len(splits.validation), len(splits.test), splits.train.num_classes
    (1167, 130, 500, 10)
    """

    validation_fraction: float = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "data", split_seed=SEEDS, validation_fraction="[0, 1)")

    def load(self) -> Splits:
        with optional_dependency("train"):
            from sklearn.datasets import load_digits
        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        images = ImageSet(Rows.of(ArrayPixels(pixels)), torch.from_numpy(labels.astype(np.int64)), tuple("0123456789"))
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.split_seed))
        test, rest = order[:500], order[500:]
        held = round(len(rest) * self.validation_fraction)
        return Splits(
            images.select(rest[held:].sort().values),
            images.select(rest[:held].sort().values) if held else None,
            images.select(test.sort().values),
            ("The test classes were trained on: for plots, not for measuring retrieval.",),
        )
