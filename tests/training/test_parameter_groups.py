"""Parameter groups, and refused settings of an optimisation."""

from functools import partial
from typing import Any

import pytest
import torch
from timm.optim import param_groups_layer_decay

from proxemic.losses import HISTLoss, ProxyAnchorLoss
from proxemic.models import ModelConfig, build_model
from proxemic.training import Optimization, parameter_groups


def test_four_groups_have_their_own_rates() -> None:
    model = build_model(ModelConfig(embedding_size=8, width=4))
    groups = parameter_groups(
        model, HISTLoss(5, 8, hidden=4), lr=1.0, loss_lr=2.0, head_lr=3.0, graph_lr=4.0, loss_weight_decay=0.5
    )
    assert {group["name"]: group["lr"] for group in groups} == {"backbone": 1, "head": 3, "proxies": 2, "graph": 4}
    assert [group.get("weight_decay") for group in groups] == [None, None, 0.5, 0.5]
    names = {id(parameter): name for name, parameter in HISTLoss(5, 8, hidden=4).named_parameters()}
    assert len(groups[2]["params"]) == 2  # means and variances
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())) + len(names)


@pytest.mark.parametrize(("backbone", "layers"), [("resnet18", 9), ("vit_tiny_patch16_224", 4), ("convnet", 4)])
def test_the_rates_of_layers_decay_towards_the_images(backbone: str, layers: int) -> None:
    arguments: dict[str, Any] = {"depth": 3} if backbone.startswith("vit") else {}
    model = build_model(ModelConfig(backbone=backbone, embedding_size=8, backbone_args=arguments))
    loss = ProxyAnchorLoss(5, 8)
    groups = parameter_groups(model, loss, lr=0.1, loss_lr=2.0, head_lr=3.0, layer_decay=0.5)
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates == {
        **{f"backbone.{layer}": 0.1 * 0.5 ** (layers - layer) for layer in range(1, layers + 1)},
        "head": 3.0,
        "proxies": 2.0,
    }
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for part in (model, loss) for parameter in part.parameters())


def test_the_rates_of_layers_are_timms() -> None:
    model = build_model(ModelConfig(backbone="resnet18", embedding_size=8))
    network = model.get_submodule("backbone.network")
    theirs = {
        id(parameter): group["lr_scale"]
        for group in param_groups_layer_decay(network, layer_decay=0.7)
        for parameter in group["params"]
    }
    groups = parameter_groups(model, ProxyAnchorLoss(5, 8), lr=1.0, loss_lr=1.0, layer_decay=0.7)
    ours = {id(item): group["lr"] for group in groups if "backbone" in group["name"] for item in group["params"]}
    assert ours == pytest.approx(theirs)


def test_frozen_layers_have_no_groups_and_schedules_keep_the_proportions() -> None:
    model = build_model(ModelConfig(embedding_size=8, width=4, train="last:2"))
    optim = Optimization(
        torch.optim.SGD,  # type: ignore[arg-type]
        0.1,
        1.0,
        layer_decay=0.5,
        schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1),
    )
    optimizer, schedule = optim.build(model, ProxyAnchorLoss(5, 8))
    assert [group["name"] for group in optimizer.param_groups] == ["backbone.3", "backbone.4", "head", "proxies"]
    optimizer.step()
    assert schedule is not None
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.01, 0.01, 0.1])


def test_steps_are_fused_on_a_gpu_unless_the_recipe_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(optimizer: Any, rate: float = 1.0) -> list[bool | None]:
        loss = ProxyAnchorLoss(5, 2, sample_rate=rate)
        made, _ = Optimization(optimizer, 0.1, 1.0).build(torch.nn.Linear(2, 2), loss)
        return [group.get("fused") for group in made.param_groups]

    assert fused(torch.optim.AdamW) == [None, None]
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert fused(torch.optim.AdamW) == fused(torch.optim.SGD) == [True, True]
    assert fused(torch.optim.SGD, rate=0.5) == [True, None]
    assert fused(partial(torch.optim.Adam, foreach=True)) == fused(torch.optim.RMSprop) == [None, None]
    assert fused(partial(torch.optim.Adam, fused=False)) == [False, False]


def test_an_optimization_refuses_what_makes_no_sense() -> None:
    both = {"clip_value": 1.0, "clip_norm": 1.0}
    cases: list[dict[str, Any]] = [{"head_lr": 0.0}, {"clip_norm": -1.0}, {"loss_weight_decay": -1.0}, both]
    cases += [{"clip_backbone_norm": 0.0}, {"clip_backbone_norm": 1.0, "clip_norm": 1.0}]
    cases += [{"layer_decay": 0.0}, {"layer_decay": 1.1}, {"layer_decay": float("nan")}]
    for wrong in cases:
        with pytest.raises(ValueError, match=r"optim\."):
            Optimization(torch.optim.SGD, 0.1, 0.1, **wrong)
    default = parameter_groups(torch.nn.Linear(2, 2), ProxyAnchorLoss(3, 2), lr=1.0, loss_lr=2.0)
    assert [group["name"] for group in default] == ["backbone", "proxies"]


def test_optimisers_that_need_a_closure_are_refused() -> None:
    optim = Optimization(partial(torch.optim.LBFGS, max_iter=4), lr=0.002, loss_lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"optim.optimizer is LBFGS, .* take another"):
        optim.build(torch.nn.Linear(2, 2), ProxyAnchorLoss(5, 2))


def test_optimisers_that_look_at_all_rows_cannot_step_shards() -> None:
    model, loss = torch.nn.Linear(2, 2), ProxyAnchorLoss(5, 2)
    optim = Optimization(torch.optim.Adafactor, lr=0.002, loss_lr=0.1)  # type: ignore[arg-type]
    assert isinstance(optim.build(model, loss)[0], torch.optim.Adafactor)
    with pytest.raises(ValueError, match=r"the optimiser is Adafactor, .*proxies: replicated\.$"):
        optim.build(model, loss, sharded=True)
