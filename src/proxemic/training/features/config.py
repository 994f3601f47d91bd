"""What of a frozen backbone is kept from one epoch, and one run, to the next."""

from dataclasses import dataclass
from pathlib import Path

MOST_COPIES = 10_000


@dataclass(frozen=True)
class FeatureConfig:
    """Whether the pooled features of a frozen backbone are computed once, for all epochs and runs.

    Training and validation then read features in place of images, and an epoch takes seconds; the final test goes
    through the whole model. The features are computed in `evaluation.precision` and kept as float32: those of 1,000
    images with 1,280 features take 5 MB, and as much for each copy.

    Features are found again by the image files (their paths, sizes and modification times, and boxes; the pixels of
    images that are in no files), the preprocessing, the precision, the backbone and its weights; copies by the
    augmentation and the recipe's seed, too. What changes is computed anew, and old caches are not deleted; fewer or
    more copies share those that there are. A run that is killed goes on after the last batch that it had written.

    Args:
        cache: Whether they are; `model.train` must be `head`, and the pooling have no trained power (`gem`).
        copies: Augmented copies of each training image, of which each step draws one by the sample's seed; 1 to 10,000.
            Null trains on the features of the images as evaluation sees them, without augmentation.
        folder: Folder of the caches; null for the user's cache folder.

    Raises:
        ValueError: If the number of copies is out of its range, or there are copies without a cache.
    """

    cache: bool = False
    copies: int | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.copies is not None and not 1 <= self.copies <= MOST_COPIES:
            raise ValueError(
                f"features.copies is {self.copies}, but must be from 1 to {MOST_COPIES:,}, or null for no augmentation."
            )
        if self.copies is not None and not self.cache:
            raise ValueError(
                f"features.copies is {self.copies}, but features.cache is false, so that every epoch augments images "
                "anew: set features.cache to true, or leave features.copies null."
            )
