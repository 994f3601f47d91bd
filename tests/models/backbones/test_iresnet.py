"""IResNet against its published layers, against plain arithmetic, and its weights from files."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from proxemic.models import IResNet, ModelConfig, build_model, iresnet_backbone
from proxemic.models.backbones.iresnet import IRESNETS

# Blocks of the four stages, and parameters, of each network that insightface's arcface_torch defines.
PUBLISHED = {
    "iresnet18": ((2, 2, 2, 2), 24_025_600),
    "iresnet34": ((3, 4, 6, 3), 34_139_328),
    "iresnet50": ((3, 4, 14, 3), 43_590_848),
    "iresnet100": ((3, 13, 30, 3), 65_156_160),
    "iresnet200": ((6, 26, 60, 6), 118_833_920),
}


def published_shapes(blocks: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the shape of every tensor of the published network except batch norm's counters."""
    shapes: dict[str, list[int]] = {}

    def convolution(name: str, inputs: int, outputs: int, side: int) -> None:
        shapes[f"{name}.weight"] = [outputs, inputs, side, side]

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = [channels]

    convolution("conv1", 3, 64, 3)
    norm("bn1", 64)
    shapes["prelu.weight"] = [64]
    entering = 64
    for stage, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), 1):
        for block in range(count):
            name = f"layer{stage}.{block}"
            norm(f"{name}.bn1", entering)
            convolution(f"{name}.conv1", entering, width, 3)
            norm(f"{name}.bn2", width)
            shapes[f"{name}.prelu.weight"] = [width]
            convolution(f"{name}.conv2", width, width, 3)
            norm(f"{name}.bn3", width)
            if block == 0:
                convolution(f"{name}.downsample.0", entering, width, 1)
                norm(f"{name}.downsample.1", width)
            entering = width
    norm("bn2", 512)
    shapes |= {"fc.weight": [512, 512 * 7 * 7], "fc.bias": [512]}
    norm("features", 512)
    return shapes


@cache
def published() -> dict[str, Tensor]:
    """Random weights in the layout of a published file of the smallest network."""
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in published_shapes(PUBLISHED["iresnet18"][0]).items():
        if len(shape) > 1:
            state[name] = torch.randn(shape, generator=generator) / torch.tensor(shape[1:]).prod() ** 0.5
        else:
            low = -0.5 if name.endswith(("bias", "mean")) else 0.5
            state[name] = torch.rand(shape, generator=generator) + low
            if name.endswith("running_var"):
                state[name.replace("running_var", "num_batches_tracked")] = torch.tensor(5)
    return state | {"features.weight": torch.ones(512)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.save(published(), path)
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_shapes_and_parameters_are_the_published_ones(name: str) -> None:
    blocks, parameters = PUBLISHED[name]
    with torch.device("meta"):
        net = IResNet(IRESNETS[name])
    state = net.state_dict()
    shapes = published_shapes(blocks)
    counters = {key.replace("running_var", "num_batches_tracked"): [] for key in shapes if key.endswith("running_var")}
    assert {key: list(value.shape) for key, value in state.items()} == shapes | counters
    assert sum(value.numel() for value in net.parameters()) == parameters
    assert set(PUBLISHED) == set(IRESNETS)


def reference(images: Tensor, state: dict[str, Tensor], blocks: tuple[int, ...]) -> Tensor:
    """The published network in plain float64 arithmetic."""

    def norm(features: Tensor, name: str) -> Tensor:
        scale, shift, mean, var = (
            state[f"{name}.{part}"].double().reshape(1, -1, *[1] * (features.ndim - 2))
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (features - mean) / (var + 1e-5).sqrt() * scale + shift

    def bent(features: Tensor, name: str) -> Tensor:
        return features.clamp(min=0) + state[f"{name}.weight"].double().reshape(1, -1, 1, 1) * features.clamp(max=0)

    def convolved(features: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"].double()
        return conv2d(features, weight, stride=stride, padding=weight.shape[2] // 2)

    features = bent(norm(convolved(images.double(), "conv1"), "bn1"), "prelu")
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            name, stride = f"layer{stage}.{block}", 2 if block == 0 else 1
            inner = bent(
                norm(convolved(norm(features, f"{name}.bn1"), f"{name}.conv1"), f"{name}.bn2"), f"{name}.prelu"
            )
            inner = norm(convolved(inner, f"{name}.conv2", stride), f"{name}.bn3")
            if block == 0:
                features = norm(convolved(features, f"{name}.downsample.0", 2), f"{name}.downsample.1")
            features = features + inner
    flat = norm(features, "bn2").flatten(1)
    return norm(flat @ state["fc.weight"].double().T + state["fc.bias"].double(), "features")


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{"backbone": "iresnet18", "embedding_size": 512, "head": "none", "normalize": False} | changes)


def images(count: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, 112, 112, generator=torch.Generator().manual_seed(1))


def test_computes_what_the_published_network_computes(file: Path) -> None:
    found = build_model(config(weights=str(file))).eval()(images())
    expected = reference(images(), published(), PUBLISHED["iresnet18"][0])
    assert expected.std() > 0.1
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4 * expected.std().item())


def test_initial_weights_are_the_published_ones() -> None:
    torch.manual_seed(0)
    net = iresnet_backbone("iresnet18")
    for name, value in net.named_parameters():
        if value.ndim == 4:
            assert value.std().item() == pytest.approx(0.1, rel=0.1), name
        elif "prelu" in name:
            assert torch.equal(value, torch.full_like(value, 0.25)), name
        elif not name.startswith("fc."):
            assert torch.equal(value, torch.full_like(value, float(name.endswith("weight")))), name
    assert [name for name, value in net.named_parameters() if not value.requires_grad] == ["features.weight"]


def test_a_step_reaches_every_parameter_but_the_constant_one() -> None:
    torch.manual_seed(0)
    model = build_model(config(in_channels=1))
    # Less the batch's own mean, `fc.bias` would have a gradient of rounding alone.
    model.backbone.get_submodule("features").eval()
    (model(images(4, 1))[:, 0] - 1).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name == "backbone.features.weight":
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def test_the_last_layers_are_float32_under_autocast(file: Path) -> None:
    net = iresnet_backbone("iresnet18", weights=file).eval()
    taken: list[Tensor] = []
    net.fc.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    net.bn2.register_forward_hook(lambda *arguments: taken.append(arguments[2]))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        embeddings = net(images())
    assert [item.dtype for item in taken] == [torch.bfloat16, torch.float32]
    assert embeddings.dtype == torch.float32


def test_other_images_and_settings_are_refused() -> None:
    net = iresnet_backbone("iresnet18")
    for height, width in ((112, 96), (224, 224)):
        with pytest.raises(ValueError, match=f"images are {height} by {width} pixels .* set images.size to 112"):
            net(torch.zeros(1, 3, height, width))
    with pytest.raises(ValueError, match="pooling is 'gem' but 'iresnet18' pools by a layer of its own; take avg"):
        config(pooling="gem")
    with pytest.raises(ValueError, match="backbone_args are given but 'iresnet18' takes none"):
        config(backbone_args={"depth": 2})
    with pytest.raises(ValueError, match="cannot download weights of 'iresnet18'; give a file as weights"):
        config(pretrained=True)
    with pytest.raises(ValueError, match="embedding_size is 128 but without a head it must be 512"):
        build_model(config(embedding_size=128))
    with pytest.raises(ValueError, match="did you mean iresnet50 or"):
        build_model(config(backbone="iresnet_50"))
    with pytest.raises(ValueError, match="name is 'iresnet1' but must be one of iresnet18,"):
        iresnet_backbone("iresnet1")
