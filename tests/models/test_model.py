"""The embedding network as its configuration describes it."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import layer_norm, normalize

from proxemic.losses import EuclideanSoftmaxLoss
from proxemic.metrics.proxies import average_distance_to_proxy
from proxemic.models import ConvNet, EmbeddingModel, ModelConfig, build_model, load_model, save_model
from proxemic.models.config import HeadInit


def images(channels: int = 1) -> torch.Tensor:
    return torch.randn(4, channels, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_is_backbone_then_pooling_then_head(layer: bool, unit: bool) -> None:
    model = build_model(ModelConfig(embedding_size=8, layer_norm=layer, normalize=unit, in_channels=1)).eval()
    features = model.backbone(images()).mean((2, 3))
    if layer:
        features = layer_norm(features, features.shape[1:])
    linear = model.head[-1]
    assert isinstance(linear, torch.nn.Linear)
    expected = features @ linear.weight.T + linear.bias
    torch.testing.assert_close(model(images()), normalize(expected, dim=1) if unit else expected)


@pytest.mark.parametrize("unit", [False, True])
def test_embeddings_are_float32_under_autocast(unit: bool) -> None:
    model = build_model(ModelConfig(embedding_size=8, in_channels=1, normalize=unit))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings, features = model.eval()(images()), model.features(images())
    assert embeddings.dtype == torch.float32
    expected = model.head(features.float())
    torch.testing.assert_close(embeddings, normalize(expected, dim=1) if unit else expected)
    assert model.bfloat16()(images().bfloat16()).dtype == torch.float32


def test_convnet_weights_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    state = {name: value.contiguous() for name, value in ConvNet(1).state_dict().items()}
    save_file(state, file)
    model = build_model(ModelConfig(in_channels=1, weights=str(file)))
    assert all(torch.equal(value, state[name]) for name, value in model.backbone.state_dict().items())
    with pytest.raises(ValueError, match="do not fit 'convnet'"):
        build_model(ModelConfig(in_channels=3, weights=str(file)))
    with pytest.raises(ValueError, match="must be an existing"):
        build_model(ModelConfig(weights=str(tmp_path / "none.safetensors")))


def test_wrong_channels_say_so() -> None:
    with pytest.raises(ValueError, match="images have 3 channels but the model takes 1"):
        EmbeddingModel(ModelConfig(in_channels=1), ConvNet(1))(images(3))


def test_configuration_refuses() -> None:
    with pytest.raises(ValueError, match="embedding_size is 0"):
        ModelConfig(embedding_size=0)
    with pytest.raises(ValueError, match="width is 0"):
        ModelConfig(width=0)
    with pytest.raises(ValueError, match="choose one of them"):
        ModelConfig(backbone="resnet18", pretrained=True, weights="w.safetensors")
    with pytest.raises(ValueError, match="cannot download weights of 'convnet'"):
        ModelConfig(pretrained=True)


def test_no_head_gives_the_pooled_features() -> None:
    model = build_model(ModelConfig(embedding_size=64, head="none", width=8, in_channels=1, normalize=False)).eval()
    assert list(model.head.parameters()) == []
    assert torch.equal(model(images()), model.backbone(images()).mean((2, 3)))
    normed = build_model(ModelConfig(embedding_size=64, head="none", width=8, in_channels=1, layer_norm=True)).eval()
    features = layer_norm(normed.backbone(images()).mean((2, 3)), (64,))
    torch.testing.assert_close(normed(images()), normalize(features, dim=1))


class Features(torch.nn.Module):
    """Stands for a ResNet-50."""

    num_features = 2048

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.randn(len(images), 2048).relu()


@pytest.mark.parametrize(("init", "distance"), [(None, 13.40), ("kaiming_normal", 64.1)])
def test_how_the_last_layer_starts(init: HeadInit | None, distance: float) -> None:
    """torch's default gives the distance to proxies that Table III of the warping paper states before training."""
    torch.manual_seed(0)
    config = ModelConfig(backbone=Features, embedding_size=512, layer_norm=True, normalize=False, head_init=init)
    linear = build_model(config).head[-1]
    assert isinstance(linear, torch.nn.Linear)
    expected = math.sqrt(1 / 3 / 2048) if init is None else math.sqrt(2 / 512)
    assert linear.weight.std().item() == pytest.approx(expected, rel=0.01)
    assert bool(linear.bias.any()) == (init is None)
    embeddings = build_model(config)(torch.zeros(200, 3, 32, 32)).detach()
    proxies = EuclideanSoftmaxLoss(100, 512).proxies.detach()
    found = average_distance_to_proxy(embeddings, torch.arange(200) % 100, proxies)
    assert found == pytest.approx(distance, rel=0.01)


def test_no_head_refuses_another_size_than_the_features() -> None:
    for backbone, features in (("convnet", 256), ("test_resnet", 96)):
        with pytest.raises(ValueError, match=f"embedding_size is 128 but .* must be {features}, the .* {backbone}"):
            build_model(ModelConfig(backbone=backbone, head="none"))


class Frozen:
    """A model with frozen batch norm after some training steps, and its state before them."""

    def __init__(self, backbone: str) -> None:
        torch.manual_seed(0)
        config = ModelConfig(backbone=backbone, embedding_size=8, in_channels=1, width=8, freeze_batch_norm=True)
        self.model = build_model(config)
        self.before = {name: value.clone() for name, value in self.model.state_dict().items()}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, 0.1, weight_decay=0.1)
        for _ in range(2):
            self.model.eval().train()(images()).square()[:, 0].sum().backward()
            optimizer.step()


@pytest.mark.parametrize("backbone", ["convnet", "test_resnet"])
def test_frozen_batch_norm_stays_as_it_was(backbone: str) -> None:
    frozen = Frozen(backbone)
    norms = {
        name: layer
        for name, layer in frozen.model.named_modules()
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    }
    assert norms
    kept = {f"{name}.{key}" for name, layer in norms.items() for key in layer.state_dict()}
    for name, value in frozen.model.state_dict().items():
        assert torch.equal(value, frozen.before[name]) == (name in kept), name
    for name, layer in norms.items():
        assert not layer.training, name
        assert layer.weight.grad is None, name
        assert layer.bias.grad is None, name
    assert frozen.model.training
    assert frozen.model.head.training


@pytest.mark.parametrize("backbone", ["convnet", "test_efficientnet", "test_resnet"])
def test_convolutions_compute_in_channels_last(backbone: str, tmp_path: Path) -> None:
    model = build_model(ModelConfig(backbone=backbone, embedding_size=8)).eval()
    layouts = {weight.stride() for weight in model.parameters() if weight.ndim == 4}
    assert all(stride[1] == 1 for stride in layouts)
    maps: list[torch.Tensor] = []
    model.backbone.register_forward_hook(lambda *called: maps.append(called[-1]))
    embeddings = model(images(3))
    assert maps[0].is_contiguous(memory_format=torch.channels_last)
    embeddings[:, 0].sum().backward()
    for weight in model.parameters():  # where they differ, DistributedDataParallel warns and copies
        assert weight.grad is not None
        assert weight.grad.stride() == weight.stride()

    save_model(tmp_path, model, {})
    assert all(weight.stride()[1] == 1 for weight in load_model(tmp_path)[0].parameters() if weight.ndim == 4)
    plain = model.backbone.to(memory_format=torch.contiguous_format)(images(3))
    torch.testing.assert_close(maps[0], plain)
    weights = (tmp_path / "model.safetensors").read_bytes()
    save_model(tmp_path, model, {})
    assert (tmp_path / "model.safetensors").read_bytes() == weights


class _TwoConvolutions(torch.nn.Sequential):
    num_features = 4

    def __init__(self) -> None:
        super().__init__(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3))


@pytest.mark.parametrize("backbone", ["test_vit", _TwoConvolutions])
def test_other_backbones_keep_their_layout(backbone: str | type[torch.nn.Module]) -> None:
    model = build_model(ModelConfig(backbone=backbone, embedding_size=8))
    assert all(weight.is_contiguous() for weight in model.parameters())
