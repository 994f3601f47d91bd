"""Batch norm folded into convolutions: the same features with fewer layers; the network does not change."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from proxemic.data import ArrayPixels, ImageSet, Preprocessing
from proxemic.models import EmbeddingModel, ModelConfig, build_model
from proxemic.models.folding import fold_batch_norm
from proxemic.runs.embed import embed_images, folded


def trained(backbone: str) -> EmbeddingModel:
    """Make a float64 network with random statistics of batch norm."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(backbone, 8)).double().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.get_buffer("running_mean").normal_()
            layer.get_buffer("running_var").uniform_(0.5, 2.0)
            nn.init.uniform_(layer.weight, 0.5, 2.0)
            nn.init.normal_(layer.bias)
    return model


def norms(model: nn.Module) -> int:
    return sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())


@pytest.mark.parametrize(
    ("backbone", "before", "after"),
    [
        ("tf_efficientnet_lite0", 49, 0),  # its convolutions pad by the size of the image
        ("resnet18", 20, 0),
        ("densenet121", 121, 62),  # here half of them follow a concatenation
        ("convnet", 4, 4),  # here they follow max pooling, and the network is not timm's
    ],
)
@torch.no_grad()
def test_the_features_are_the_same(backbone: str, before: int, after: int) -> None:
    model, images = trained(backbone), torch.rand(2, 3, 64, 64, dtype=torch.float64)
    kept, expected = {key: value.clone() for key, value in model.state_dict().items()}, model.features(images)
    assert norms(model) == before
    with folded(model):
        assert norms(model) == after
        torch.testing.assert_close(model.features(images), expected, rtol=1e-9, atol=1e-9)
    assert norms(model) == before
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    assert torch.equal(model.features(images), expected)


@torch.no_grad()
def test_a_network_that_asks_for_values_stays_as_it_is() -> None:
    model, images = trained("vgg11_bn"), torch.rand(1, 3, 64, 64, dtype=torch.float64)
    expected = model.features(images)
    with folded(model):
        assert torch.equal(model.features(images), expected)


class Standardised(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return self._conv_forward(input, self.weight / self.weight.norm(), self.bias)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.first, self.second = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.layer(self.first(self.layer(images))))


@pytest.mark.parametrize("make", [lambda: nn.Sequential(Standardised(3, 4, 3), nn.BatchNorm2d(4)), Twice])
@torch.no_grad()
def test_layers_that_cannot_be_folded_stay(make: Callable[[], nn.Module]) -> None:
    network, images = make().eval(), torch.rand(2, 3, 8, 8)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.get_buffer("running_var").fill_(4.0)
    torch.testing.assert_close(fold_batch_norm(network)(images), network(images))


def test_embedding_folds_batch_norm_and_restores_it() -> None:
    model, seen = trained("resnet18").float(), []
    model.backbone.register_forward_hook(lambda *_: seen.append(norms(model)))
    images = ImageSet.from_names(ArrayPixels(np.zeros((3, 32, 32), dtype=np.uint8)), ["a", "b", "b"])
    embed_images(model, images, Preprocessing(size=32, channels=3))
    assert seen == [0]
    assert norms(model) == 20
