"""The small network."""

import pytest
import torch

from proxemic.models import ConvNet


@pytest.mark.parametrize(("size", "places"), [(28, 3), (32, 4), (64, 8)])
def test_convnet_gives_a_map_of_an_eighth_of_the_size(size: int, places: int) -> None:
    net = ConvNet(3, width=8)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, net.num_features, places, places)


def test_convnet_has_no_biases_before_batch_norm() -> None:
    assert all(layer.bias is None for layer in ConvNet().modules() if isinstance(layer, torch.nn.Conv2d))


def test_convnet_refuses() -> None:
    with pytest.raises(ValueError, match="width 0"):
        ConvNet(1, width=0)
