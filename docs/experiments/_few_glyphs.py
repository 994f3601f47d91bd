"""Glyphs with few images of each training class, for the condition ``few-images``."""

from dataclasses import dataclass, replace

import torch

from proxemic.data import Glyphs, Splits


@dataclass(frozen=True)
class FewGlyphs(Glyphs):
    """Glyphs, of whose training classes each keeps ``images`` of its 12 typefaces, drawn by a fixed seed.

    >>> len(FewGlyphs(train_classes=16, test_classes=8, images=2).load().train)
    16
    """

    images: int = 12

    def load(self) -> Splits:
        splits = super().load()
        generator = torch.Generator().manual_seed(0)
        drawn = [
            rows[torch.randperm(len(rows), generator=generator)[: self.images]]
            for label in range(splits.train.num_classes)
            for rows in [(splits.train.labels == label).nonzero()[:, 0]]
        ]
        return replace(splits, train=splits.train.select(torch.cat(drawn).sort().values))
