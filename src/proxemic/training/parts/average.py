"""The average of the network's weights over the training."""

from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from proxemic.distributed.gather import share_first
from proxemic.models import EmbeddingModel
from proxemic.training.config import Averaging


class WeightAverage:
    """Averages the weights of a network after each step or epoch; ``epoch`` counts from 0."""

    def __init__(self, averaging: Averaging, model: EmbeddingModel) -> None:
        self.averaging = averaging
        # Copied here, before layers for several processes are added that cannot be copied.
        self._average = AveragedModel(model, use_buffers=True)
        self._average.requires_grad_(False)

    @property
    def network(self) -> EmbeddingModel:
        """The network with the averaged weights."""
        network = self._average.module
        assert isinstance(network, EmbeddingModel)
        return network

    @property
    def has_begun(self) -> bool:
        return bool(self._average.n_averaged > 0)

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._average.load_state_dict(state_dict)

    def after_step(self, model: EmbeddingModel, epoch: int) -> None:
        if self.averaging.decay is not None:
            self._update(model, epoch)

    def after_epoch(self, model: EmbeddingModel, epoch: int) -> None:
        if self.averaging.decay is None:
            self._update(model, epoch)
        if self.has_begun and dist.group.WORLD is not None:
            # On CPUs, batch norm has different statistics on each process.
            share_first(self.network.buffers(), dist.group.WORLD)

    @torch.no_grad()
    def _update(self, model: EmbeddingModel, epoch: int) -> None:
        # Not by `AveragedModel.update_parameters`, which waits for a GPU in every step.
        if epoch + 1 < self.averaging.begins:
            return
        count = int(self._average.n_averaged)
        averaged: tuple[list[Tensor], list[Tensor]] = [], []
        copied: tuple[list[Tensor], list[Tensor]] = [], []
        tensors = (chain(network.parameters(), network.buffers()) for network in (self.network, model))
        for average, weight in zip(*tensors, strict=True):
            averages, weights = averaged if count and average.is_floating_point() else copied  # counters are copied
            averages.append(average)
            weights.append(weight)
        if averaged[0]:
            torch._foreach_lerp_(*averaged, self.averaging.share(count))
        if copied[0]:
            torch._foreach_copy_(*copied)
        self._average.n_averaged += 1
