"""What of a backbone is trained."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxemic.models import EmbeddingModel, ModelConfig, build_model
from proxemic.models.freezing import describe_training

TINY = ModelConfig(embedding_size=4, width=4)


class WithDropout(nn.Module):
    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Dropout(0.5))
        self.last = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images))


def state_after_a_step(model: EmbeddingModel) -> dict[str, Tensor]:
    """The names of what a step changes, with the values before it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)
    model.train()(torch.randn(8, 3, 32, 32)).sum().backward()
    optimizer.step()
    return {name: before[name] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize(
    ("train", "moved"), [("head", set()), ("last:1", {"3"}), ("last:3", {"1", "2", "3"}), ("all", {"0", "1", "2", "3"})]
)
def test_only_the_blocks_that_are_asked_for_move(train: str, moved: set[str]) -> None:
    changed = state_after_a_step(build_model(replace(TINY, train=train)))
    assert {name.split(".")[2] for name in changed if name.startswith("backbone.stages.")} == moved
    assert any("running_mean" in name for name in changed) == bool(moved)
    assert any(name.startswith("head.") for name in changed)


def test_frozen_blocks_stay_in_evaluation_mode_and_the_head_does_not() -> None:
    model = build_model(ModelConfig(backbone=WithDropout, embedding_size=4, train="last:1")).train()
    first, last = (model.backbone.get_submodule(f"network.{name}") for name in ("first", "last"))
    assert not any(layer.training for layer in first.modules())
    assert all(layer.training for layer in last.modules())
    model = build_model(ModelConfig(backbone=WithDropout, embedding_size=4, train="head")).eval().train()
    assert model.head.training
    assert not any(layer.training for layer in model.backbone.modules())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(model.features(images), model.eval().features(images))
    assert not model.features(images).requires_grad


def test_it_adds_to_frozen_batch_norm_and_what_a_network_freezes_itself() -> None:
    model = build_model(replace(TINY, train="last:2", freeze_batch_norm=True))
    assert [name for name, each in model.backbone.named_parameters() if each.requires_grad] == [
        "stages.2.0.weight",
        "stages.3.0.weight",
    ]
    assert not any(isinstance(layer, nn.BatchNorm2d) and layer.training for layer in model.train().modules())
    face = build_model(ModelConfig(backbone="iresnet18", head="none", embedding_size=512, train="last:1"))
    trained = [name for name, each in face.backbone.named_parameters() if each.requires_grad]
    assert trained == ["fc.weight", "fc.bias", "features.bias"]  # the weight of the last batch norm is fixed by design


def test_what_is_trained_is_said() -> None:
    model = build_model(replace(TINY, train="last:2"))
    counted = sum(each.numel() for each in model.backbone.parameters() if each.requires_grad)
    assert describe_training(model.backbone, "last:2", "convnet") == (
        f"model.train is last:2: of the 4 blocks of convnet, the last 2 are trained, from stages.2.0.weight on: "
        f"{counted:,} of {sum(each.numel() for each in model.backbone.parameters()):,} parameters."
    )
    assert "the last is trained, from stages.3.0.weight on" in describe_training(model.backbone, "last:1", "convnet")
    assert describe_training(model.backbone, "head", "convnet").endswith("parameters of convnet are not trained.")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"train": "last:5"}, "train is 'last:5' but convnet has 4 blocks; give last:4 or fewer, or all"),
        (
            {"train": "last:1", "backbone": "none", "input_size": 8},
            "train is 'last:1' but none has 0 blocks; give all or head",
        ),
        ({"train": "last:0"}, "train is 'last:0' but must be all, head, or last:N"),
        ({"train": "some"}, "train is 'some' but must be all, head, or last:N"),
        ({"train": "head", "head": "none", "embedding_size": 32}, "there is no head, so that nothing would be trained"),
    ],
)
def test_what_cannot_be_frozen_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_model(replace(TINY, **wrong))
