"""Parameter groups and what an optimisation refuses."""

from typing import Any

import pytest
import torch

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
    names = {id(each): name for name, each in HISTLoss(5, 8, hidden=4).named_parameters()}
    assert len(groups[2]["params"]) == 2  # means and variances
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())) + len(names)


def test_an_optimization_refuses_what_makes_no_sense() -> None:
    both = {"clip_value": 1.0, "clip_norm": 1.0}
    cases: list[dict[str, Any]] = [{"head_lr": 0.0}, {"clip_norm": -1.0}, {"loss_weight_decay": -1.0}, both]
    cases += [{"clip_backbone_norm": 0.0}, {"clip_backbone_norm": 1.0, "clip_norm": 1.0}]
    for wrong in cases:
        with pytest.raises(ValueError, match=r"optim\."):
            Optimization(torch.optim.SGD, 0.1, 0.1, **wrong)
    default = parameter_groups(torch.nn.Linear(2, 2), ProxyAnchorLoss(3, 2), lr=1.0, loss_lr=2.0)
    assert [group["name"] for group in default] == ["backbone", "proxies"]
