"""The task that Lightning trains."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision

from processes import run_processes
from proxemic.errors import TrainingDiverged
from proxemic.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from proxemic.models import ModelConfig, build_model
from proxemic.runs.processes import Processes
from proxemic.training import Optimization
from proxemic.training.module import EmbeddingTask, check_embeddings


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


def test_embeddings_that_are_not_finite_name_the_weights_where_these_are_the_cause(task: EmbeddingTask) -> None:
    check_embeddings(torch.ones(2, 4), "training", task, 0)
    wrong = torch.tensor([[torch.nan]])
    with pytest.raises(TrainingDiverged, match=r"embeddings of training images .* in epoch 3; .*lr is 0.002"):
        check_embeddings(wrong, "training", task, 2)
    with torch.no_grad():
        task.model.head.get_parameter("1.weight").fill_(torch.nan)
    with pytest.raises(TrainingDiverged, match=r"The weights model.head.1.weight are no longer finite"):
        check_embeddings(wrong, "training", task, 2)


@pytest.mark.parametrize("optimizer", [torch.optim.Adafactor, torch.optim.LBFGS])
def test_optimisers_that_look_at_all_rows_cannot_step_shards(task: EmbeddingTask, optimizer: Any) -> None:
    optim = Optimization(partial(_of_all, optimizer), lr=0.002, loss_lr=0.1)
    assert isinstance(optim.build(task.model, task.loss)[0], optimizer)
    with pytest.raises(ValueError, match=rf"the optimiser is {optimizer.__name__}, .*proxies: replicated\.$"):
        optim.build(task.model, task.loss, sharded=True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", ["clip_value", "clip_norm", "clip_backbone_norm"])
def test_half_precision_clips_gradients_of_their_true_size(clip: str, fused: bool) -> None:
    model = build_model(ModelConfig(backbone="convnet", in_channels=1, embedding_size=4, width=2))
    optimizer = partial(torch.optim.SGD, fused=fused)
    optim = Optimization(optimizer, lr=1.0, loss_lr=1.0, **{clip: 1e-3})  # type: ignore[arg-type]
    task = EmbeddingTask(model, NormalizedSoftmaxLoss(5, 4), optim, seed=0)
    before = {name: value.detach().clone() for name, value in task.named_parameters()}
    scaler = torch.amp.GradScaler("cpu")
    precision = MixedPrecision("16-mixed", "cpu", scaler)
    task._trainer = Trainer(accelerator="cpu", plugins=[precision], logger=False, enable_progress_bar=False)
    stepped, _ = optim.build(model, task.loss)
    scaler.scale(task.loss(task.model(torch.randn(4, 1, 16, 16)), torch.arange(4))).backward()
    if not fused:
        scaler.unscale_(stepped)  # as Lightning does
    task.configure_gradient_clipping(stepped)
    scaler.step(stepped)
    steps = {name: before[name] - value for name, value in task.named_parameters()}
    largest = {
        "clip_value": max(step.abs().max() for step in steps.values()),
        "clip_norm": torch.stack([step.norm() for step in steps.values()]).norm(),
        "clip_backbone_norm": torch.stack([step.norm() for n, step in steps.items() if "backbone" in n]).norm(),
    }
    assert largest[clip].item() == pytest.approx(1e-3, rel=1e-3)


def _of_all(optimizer: Any, groups: Any, lr: float) -> torch.optim.Optimizer:
    return optimizer([parameter for group in groups for parameter in group["params"]], lr=lr)


def test_the_network_draws_on_each_process_its_own() -> None:
    model = build_model(ModelConfig(backbone="convnet", embedding_size=4, width=4))
    draws = []
    for rank in (0, 1, 0):
        task = EmbeddingTask(
            model,
            ProxyAnchorLoss(3, 4),
            Optimization(torch.optim.AdamW, lr=0.002, loss_lr=0.1),  # type: ignore[arg-type]
            7,
            processes=Processes(rank, 2),
        )
        task.on_train_batch_start(None, 0)
        draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


def test_the_network_gets_the_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    for process in run_processes(Path(__file__).with_name("network_gradients.py"), tmp_path):
        assert process["worst"] < 1e-11, process
        assert process["tensors"] > 15
        assert process["clipped"] < 1e-6  # torch adds 1e-6 to the norm
