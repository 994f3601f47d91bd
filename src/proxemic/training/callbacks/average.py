"""The average of the network's weights over the training."""

from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from proxemic.distributed.gather import share_first
from proxemic.metrics import RetrievalMetrics
from proxemic.models import EmbeddingModel
from proxemic.training.callbacks.retrieval import RetrievalCallback
from proxemic.training.config import Averaging
from proxemic.training.module import EmbeddingTask


class WeightAverage(Callback):
    """Averages the weights of a network during training and evaluates the average after each epoch.

    ``latest`` are the last metrics, or None before averaging begins and if nothing is evaluated.
    """

    def __init__(self, averaging: Averaging, model: EmbeddingModel, evaluator: RetrievalCallback | None) -> None:
        self.averaging, self.evaluator = averaging, evaluator
        self.latest: RetrievalMetrics | None = None
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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.network.to(pl_module.device)  # the number of averaged weights stays on the CPU, where it is read

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        if self.averaging.decay is not None:
            self._update(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.averaging.decay is None:
            self._update(trainer, pl_module)
        if not self.has_begun:
            return
        if dist.group.WORLD is not None:  # on CPUs, batch norm has different statistics on each process
            share_first(self.network.buffers(), dist.group.WORLD)
        if self.evaluator is not None:
            self.latest = self.evaluator.evaluate(trainer, self.network)
            values = {f"{self.evaluator.prefix}average_{name}": value for name, value in self.latest.items()}
            pl_module.log_dict(values, reduce_fx="max")

    @torch.no_grad()
    def _update(self, trainer: Trainer, task: LightningModule) -> None:
        # Not by `AveragedModel.update_parameters`, which waits for a GPU in every step.
        assert isinstance(task, EmbeddingTask)
        if trainer.current_epoch + 1 < self.averaging.begins:
            return
        count = int(self._average.n_averaged)
        averaged: tuple[list[Tensor], list[Tensor]] = [], []
        copied: tuple[list[Tensor], list[Tensor]] = [], []
        tensors = (chain(network.parameters(), network.buffers()) for network in (self.network, task.model))
        for average, weight in zip(*tensors, strict=True):
            averages, weights = averaged if count and average.is_floating_point() else copied  # counters are copied
            averages.append(average)
            weights.append(weight)
        if averaged[0]:
            torch._foreach_lerp_(*averaged, self.averaging.share(count))
        if copied[0]:
            torch._foreach_copy_(*copied)
        self._average.n_averaged += 1
