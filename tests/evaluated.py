"""Pictures of six classes and a user's own Lightning module, which tests evaluate while they train it."""

from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from proxemic.data import ArrayPixels, ImageSet, Preprocessing
from proxemic.training import EvaluationConfig

PREPROCESSING = Preprocessing(size=8, resize=None, channels=1, mean=(0.5,), std=(0.5,))


class Ramp(nn.Module):
    """Depends on the order of the rows."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> dict[str, Tensor]:
        assert len(embeddings) == len(labels)
        return {"ramp": torch.arange(len(embeddings)).double() @ embeddings.double().sum(1)}


CONFIG = EvaluationConfig(recall_at=(1, 2), ndcg_at=(3,), batch_size=16, own_metrics=[Ramp()])


def images() -> ImageSet:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (6, 8, 8))
    classes = np.arange(50) % 6
    array = (patterns[classes] + rng.integers(0, 160, (50, 8, 8))).clip(0, 255).astype(np.uint8)
    return ImageSet.from_names(ArrayPixels(array), [str(name) for name in classes])


class Module(LightningModule):
    """Has dropout that must be off and a part that must stay frozen."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 4))
        self.frozen = nn.BatchNorm1d(4).eval()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        return self.frozen(self.net(images)) * self.factor

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert self.net.training
        assert not self.frozen.training
        return self(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.5)
