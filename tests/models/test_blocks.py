"""Networks as sequences of blocks."""

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from proxemic.models import ModelConfig, build_model
from proxemic.models.blocks import backbone_blocks
from proxemic.models.custom_backbone import CustomBackbone

INCEPTION = ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b")
RESNET = ["conv1", "layer1", "layer2", "layer3", "layer4"]


class Tower(nn.Module):
    """With a list of layers behind a wrapper, as networks of transformers have, and a parameter of its own."""

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
            ["conv1", "conv2", *(f"inception_{each}" for each in INCEPTION)],
        ),
        ("iresnet18", [*RESNET, "fc"]),
        ("resnet18", [f"network.{each}" for each in RESNET]),
        ("tf_efficientnet_lite0", ["network.conv_stem", *(f"network.blocks.{each}" for each in range(7))]),
        ("vit_tiny_patch16_224", ["network.cls_token", *(f"network.blocks.{each}" for each in range(12))]),
        ("swin_tiny_patch4_window7_224", ["network.patch_embed", *(f"network.layers.{each}" for each in range(4))]),
    ],
)
def test_every_parameter_is_in_one_block(name: str, expected: list[str]) -> None:
    head = {"head": "none", "embedding_size": 512} if name == "iresnet18" else {}
    with torch.device("meta"):
        backbone = build_model(ModelConfig(backbone=name, **head)).backbone
    for fine in (False, True):
        blocks = backbone_blocks(backbone, fine=fine)
        assert sorted(each for block in blocks for each in block) == sorted(dict(backbone.named_parameters()))
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
    parameters = {id(parameter): each for each, parameter in network.named_parameters()}
    by_scale: dict[float, set[str]] = {}
    for group in param_groups_layer_decay(network, layer_decay=0.5):
        by_scale.setdefault(group["lr_scale"], set()).update(
            f"network.{parameters[id(each)]}" for each in group["params"]
        )
    expected = [by_scale[scale] for scale in sorted(by_scale)]
    assert [{*block} for block in backbone_blocks(backbone, fine=True)] == expected
