"""The task that Lightning trains."""

from functools import partial
from typing import Any

import pytest
import torch

from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.models import ModelConfig, build_model
from proxemic.training import Optimization
from proxemic.training.module import EmbeddingTask, TrainingDiverged


@pytest.fixture
def task() -> EmbeddingTask:
    model = build_model(ModelConfig(backbone="resnet18", in_channels=1, embedding_size=4))
    optim = Optimization(torch.optim.AdamW, lr=0.002, loss_lr=0.1)  # type: ignore[arg-type]
    return EmbeddingTask(model, NormalizedSoftmaxLoss(5, 4), optim, seed=0)


@pytest.mark.parametrize(
    "name", ["model.backbone.network.bn1.running_var", "model.backbone.network.conv1.weight", "loss.proxies"]
)
def test_weights_that_are_not_finite_are_named(task: EmbeddingTask, name: str) -> None:
    task.check_weights()
    task.state_dict()[name].view(-1)[-1] = torch.inf
    with pytest.raises(TrainingDiverged, match=f"The weights {name} are no longer finite at step 0; .*lr is 0.002"):
        task.check_weights()


@pytest.mark.parametrize("optimizer", [torch.optim.Adafactor, torch.optim.LBFGS])
def test_optimisers_that_look_at_all_rows_cannot_step_shards(task: EmbeddingTask, optimizer: Any) -> None:
    optim = Optimization(partial(_of_all, optimizer), lr=0.002, loss_lr=0.1)
    assert isinstance(optim.build(task.model, task.loss)[0], optimizer)
    with pytest.raises(ValueError, match=rf"the optimiser is {optimizer.__name__}, .*proxies: replicated\.$"):
        optim.build(task.model, task.loss, sharded=True)


def _of_all(optimizer: Any, groups: Any, lr: float) -> torch.optim.Optimizer:
    return optimizer([parameter for group in groups for parameter in group["params"]], lr=lr)
