"""Class-disjoint cross-validation inside the training part of any source."""

from dataclasses import dataclass, replace

import torch

from proxemic.data.images import ImageSource, Splits
from proxemic.ranges import SEEDS, check_fields


@dataclass(frozen=True)
class Fold(ImageSource):
    """One fold of a cross-validation: the training classes are split into ``folds`` parts, one for validation.

    Each class is a validation class in exactly one fold, and a training class in all others. In every fold, the test
    classes are those of the source.

    Args:
        source: Source of the images, with ``validation_fraction=0``.
        folds: Number of parts, 2 or more.
        fold: The part for validation, 0 to ``folds - 1``.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If a number is out of range, or (on load) the source has validation classes or too few classes.

    Source: Musgrave, Belongie, Lim, "A Metric Learning Reality Check", ECCV 2020, section 3.

    >>> from proxemic.data import Glyphs
    >>> splits = Fold(Glyphs(10, 4, validation_fraction=0.0), folds=3, fold=1).load()
    >>> splits.train.num_classes, splits.validation.num_classes, splits.test.num_classes
    (7, 3, 4)
    """

    source: ImageSource
    folds: int = 4
    fold: int = 0
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "data", folds="[2, inf)", fold=f"[0, {self.folds})", split_seed=SEEDS)

    @property
    def has_test(self) -> bool:
        return self.source.has_test

    def load(self) -> Splits:
        splits = self.source.load()
        if splits.validation is not None:
            raise ValueError(
                f"the source of a fold itself holds out {splits.validation.num_classes} classes for validation: set "
                "its validation_fraction to 0."
            )
        classes = splits.train.num_classes
        if classes < 2 * self.folds:
            raise ValueError(
                f"folds is {self.folds}, but the {classes} training classes give less than 2 to a fold: take at most "
                f"{classes // 2} folds."
            )
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(self.split_seed))
        validates = torch.arange(classes) % self.folds == self.fold
        train, validation = order[~validates].sort().values, order[validates].sort().values
        select = splits.train.select_classes
        return replace(splits, train=select(train), validation=select(validation), rows=None)
