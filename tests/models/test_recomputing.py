"""Gradient checkpointing gives the gradients of a network that keeps everything, and keeps less."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from proxemic.models import ModelConfig, build_model
from proxemic.training.gradient_cache import InMicroBatches

VIT = ModelConfig(
    "vit_tiny_patch16_224", embedding_size=8, image_size=32, backbone_args={"depth": 3, "drop_path_rate": 0.5}
)


def gradients(config: ModelConfig, micro_batches: int = 1) -> tuple[dict[str, Tensor], int]:
    """Of the network's parameters, and how many numbers were kept for them."""
    torch.manual_seed(0)
    model = build_model(config).train()
    images, kept = torch.randn(4, 3, 32, 32), [0]

    def count(tensor: Tensor) -> Tensor:
        kept[0] += tensor.numel()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        embeddings = InMicroBatches(model, micro_batches)(images)
    embeddings.pow(3).sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}, kept[0]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_same_gradients_from_less(micro_batches: int) -> None:
    whole, many = gradients(VIT, micro_batches)
    again, few = gradients(replace(VIT, gradient_checkpointing=True), micro_batches)
    assert whole.keys() == again.keys()
    assert all(torch.equal(again[name], value) for name, value in whole.items())
    assert few < many / 2 or micro_batches > 1


def test_it_composes_with_frozen_blocks() -> None:
    config = replace(VIT, train="last:1")
    whole, again = gradients(config)[0], gradients(replace(config, gradient_checkpointing=True))[0]
    assert {name.partition(".blocks.")[2][:1] for name in again if ".blocks." in name} == {"2"}
    assert all(torch.equal(again[name], value) for name, value in whole.items())


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


def test_batch_norm_that_is_frozen_is_no_hindrance() -> None:
    config = ModelConfig("test_resnet", gradient_checkpointing=True, train="head")
    for frozen in (config, replace(config, train="all", freeze_batch_norm=True)):
        assert build_model(frozen).config == frozen
