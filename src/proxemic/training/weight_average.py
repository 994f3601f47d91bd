"""The average of the network's weights, kept and evaluated while the network is trained."""

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from proxemic.metrics import RetrievalMetrics
from proxemic.models import EmbeddingModel
from proxemic.training.averaging import Averaging
from proxemic.training.module import EmbeddingTask
from proxemic.training.retrieval_callback import RetrievalCallback

_Tensors = tuple[Tensor, ...] | list[Tensor]


class WeightAverage(Callback):
    """Averages the weights of a network that is trained, and evaluates the average after each epoch.

    ``latest`` are the last metrics, None before the average begins or where there is no evaluator.
    """

    def __init__(self, averaging: Averaging, model: EmbeddingModel, evaluator: RetrievalCallback | None) -> None:
        self.averaging, self.evaluator = averaging, evaluator
        self.latest: RetrievalMetrics | None = None
        # Now, as processes that train together put layers into the network that cannot be copied.
        self._average = AveragedModel(model, multi_avg_fn=self._move, use_buffers=True)
        self._average.requires_grad_(False)

    @torch.no_grad()
    def _move(self, averages: _Tensors, weights: _Tensors, averaged: Tensor | int) -> None:
        if averages[0].is_floating_point():
            torch._foreach_lerp_(averages, weights, self.averaging.share(int(averaged)))
        else:  # counters, which torch's own averages would round or refuse
            torch._foreach_copy_(averages, weights)

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
        self._average.to(pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.averaging.decay is not None:
            self._update(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.averaging.decay is None:
            self._update(trainer, pl_module)
        if not self.has_begun:
            return
        if trainer.world_size > 1:  # unless batch norm is synchronised, each process has statistics of its own
            for buffer in self.network.buffers():
                dist.broadcast(buffer, 0)
        if self.evaluator is not None:
            self.latest = self.evaluator.evaluate(trainer, self.network)
            values = {f"{self.evaluator.prefix}average_{name}": value for name, value in self.latest.items()}
            pl_module.log_dict(values, reduce_fx="max", sync_dist=trainer.world_size > 1)

    def _update(self, trainer: Trainer, task: LightningModule) -> None:
        assert isinstance(task, EmbeddingTask)
        if trainer.current_epoch + 1 >= self.averaging.begins:
            self._average.update_parameters(task.model)
