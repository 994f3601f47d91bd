"""Freezing of blocks, and gradient checkpointing."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from proxemic.models import EmbeddingModel, ModelConfig, build_model
from proxemic.models.backbones.custom_backbone import CustomBackbone
from proxemic.models.freezing import backbone_blocks, describe_training
from proxemic.training.gradient_cache import InMicroBatches

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
    """Return the tensors that a step changes, with their values before it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], 0.1)
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
    assert [name for name, parameter in model.backbone.named_parameters() if parameter.requires_grad] == [
        "stages.2.0.weight",
        "stages.3.0.weight",
    ]
    assert not any(isinstance(layer, nn.BatchNorm2d) and layer.training for layer in model.train().modules())
    face = build_model(ModelConfig(backbone="iresnet18", head="none", embedding_size=512, train="last:1"))
    trained = [name for name, parameter in face.backbone.named_parameters() if parameter.requires_grad]
    assert trained == ["fc.weight", "fc.bias", "features.bias"]  # the weight of the last batch norm is fixed by design


def test_the_trained_part_is_described() -> None:
    model = build_model(replace(TINY, train="last:2"))
    counted = sum(parameter.numel() for parameter in model.backbone.parameters() if parameter.requires_grad)
    assert describe_training(model.backbone, "last:2", "convnet") == (
        f"model.train is last:2: of the 4 blocks of convnet, the last 2 are trained, from stages.2.0.weight on: "
        f"{counted:,} of {sum(parameter.numel() for parameter in model.backbone.parameters()):,} parameters."
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
        ({"train": "head", "head": "none", "embedding_size": 32}, "there is no head, so that nothing would be trained"),
    ],
)
def test_what_cannot_be_frozen_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_model(replace(TINY, **wrong))


INCEPTION = ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b")
RESNET = ["conv1", "layer1", "layer2", "layer3", "layer4"]


class Tower(nn.Module):
    """A network with a list of layers behind a wrapper, as in transformers, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.embeddings = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
        self.norm = nn.LayerNorm(4)
        self.dropout = nn.Dropout()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("convnet", ["stages.0", "stages.1", "stages.2", "stages.3"]),
        (
            "bn_inception",
            ["conv1", "conv2", *(f"inception_{item}" for item in INCEPTION)],
        ),
        ("iresnet18", [*RESNET, "fc"]),
        ("resnet18", [f"network.{item}" for item in RESNET]),
        ("tf_efficientnet_lite0", ["network.conv_stem", *(f"network.blocks.{index}" for index in range(7))]),
        ("vit_tiny_patch16_224", ["network.cls_token", *(f"network.blocks.{index}" for index in range(12))]),
        ("swin_tiny_patch4_window7_224", ["network.patch_embed", *(f"network.layers.{index}" for index in range(4))]),
    ],
)
def test_every_parameter_is_in_one_block(name: str, expected: list[str]) -> None:
    head = {"head": "none", "embedding_size": 512} if name == "iresnet18" else {}
    with torch.device("meta"):
        backbone = build_model(ModelConfig(backbone=name, **head)).backbone
    for fine in (False, True):
        blocks = backbone_blocks(backbone, fine=fine)
        assert sorted(item for block in blocks for item in block) == sorted(dict(backbone.named_parameters()))
    blocks = backbone_blocks(backbone)
    assert len(blocks) == len(expected)
    assert all(block[0].startswith(start) for block, start in zip(blocks, expected, strict=True))


def test_the_members_of_a_list_of_layers_are_blocks() -> None:
    blocks = backbone_blocks(CustomBackbone(Tower(), 4))
    assert [block[0] for block in blocks] == [
        "network.token",
        *(f"network.encoder.layers.{number}.weight" for number in range(12)),
    ]
    assert blocks[-1][-1] == "network.norm.bias"
    assert backbone_blocks(CustomBackbone(nn.Linear(2, 2), 2)) == [["network.weight", "network.bias"]]
    assert backbone_blocks(nn.Identity()) == []


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_fine_blocks_are_those_of_timms_layer_wise_learning_rates(name: str) -> None:
    with torch.device("meta"):
        backbone = build_model(ModelConfig(backbone=name)).backbone
        network = timm.create_model(name, num_classes=0, global_pool="")
    parameters = {id(parameter): name for name, parameter in network.named_parameters()}
    by_scale: dict[float, set[str]] = {}
    for group in param_groups_layer_decay(network, layer_decay=0.5):
        by_scale.setdefault(group["lr_scale"], set()).update(
            f"network.{parameters[id(item)]}" for item in group["params"]
        )
    expected = [by_scale[scale] for scale in sorted(by_scale)]
    assert [{*block} for block in backbone_blocks(backbone, fine=True)] == expected


VIT = ModelConfig(
    "vit_tiny_patch16_224", embedding_size=8, image_size=32, backbone_args={"depth": 3, "drop_path_rate": 0.5}
)


def gradients(config: ModelConfig, micro_batches: int = 1) -> tuple[dict[str, Tensor], int]:
    """Compute the gradients of a network's parameters, and count the numbers kept for them."""
    torch.manual_seed(0)
    model = build_model(config).train()
    images, kept = torch.randn(4, 3, 32, 32), [0]

    def count(tensor: Tensor) -> Tensor:
        kept[0] += tensor.numel()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        embeddings = InMicroBatches(model, micro_batches)(images)
    embeddings.pow(3).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}, kept[0]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_same_gradients_from_less(micro_batches: int) -> None:
    whole, many = gradients(VIT, micro_batches)
    again, few = gradients(replace(VIT, gradient_checkpointing=True), micro_batches)
    assert whole.keys() == again.keys()
    assert all(torch.equal(again[name], value) for name, value in whole.items())
    assert few < many / 2 or micro_batches > 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ModelConfig("resnet18"), "resnet18 has batch norm, whose statistics would count each batch twice; set freeze"),
        (ModelConfig(freeze_batch_norm=True), "gradient_checkpointing is set but convnet has none; leave it out"),
        (ModelConfig("convit_tiny"), "gradient_checkpointing is set but convit_tiny has none; leave it out"),
    ],
)
def test_networks_that_cannot_do_it_are_refused(config: ModelConfig, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_model(replace(config, gradient_checkpointing=True))
