"""Characters with few images of each training class, for the condition ``few-images``."""

from dataclasses import dataclass, replace

import torch

from proxemic.data import Glyphs, Omniglot, Splits


def keep_few(splits: Splits, images: int) -> Splits:
    """Keep ``images`` of each training class, drawn by a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    drawn = [
        rows[torch.randperm(len(rows), generator=generator)[:images]]
        for label in range(splits.train.num_classes)
        for rows in [(splits.train.labels == label).nonzero()[:, 0]]
    ]
    return replace(splits, train=splits.train.select(torch.cat(drawn).sort().values))


@dataclass(frozen=True)
class FewGlyphs(Glyphs):
    """Glyphs whose training classes keep ``images`` of their 12 typefaces.

    >>> len(FewGlyphs(train_classes=16, test_classes=8, images=2).load().train)
    16
    """

    images: int = 12

    def load(self) -> Splits:
        return keep_few(super().load(), self.images)


@dataclass(frozen=True)
class FewOmniglot(Omniglot):
    """Omniglot whose training classes keep ``images`` of their 20 drawings."""

    images: int = 20

    def load(self) -> Splits:
        return keep_few(super().load(), self.images)
