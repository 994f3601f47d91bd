"""Heads, their initialisation, and pooling."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, layer_norm, normalize

from proxemic.models import (
    AvgMaxPool,
    AvgPool,
    GeM,
    MaxPool,
    ModelConfig,
    begin_at_principal_components,
    build_model,
    load_model,
    principal_components,
    save_model,
)


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(
        **{"width": 4, "in_channels": 1, "embedding_size": 8, "normalize": False} | settings
    )  # 32 features


def features(rows: int = 50, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(size, size, generator=generator) * torch.logspace(0, -2, size)
    return torch.randn(rows, size, generator=generator) @ mixing.T + 3


@pytest.mark.parametrize("width", [None, 5])
def test_an_mlp_is_two_linear_layers_with_gelu_between(width: int | None) -> None:
    head = build_model(config(head="mlp", head_width=width)).head
    state = head.state_dict()
    assert state["1.0.weight"].shape == (width or 32, 32)
    hidden = gelu(features() @ state["1.0.weight"].T + state["1.0.bias"])
    torch.testing.assert_close(head(features()), hidden @ state["1.2.weight"].T + state["1.2.bias"])


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("init", [None, "identity"])
def test_a_residual_head_begins_as_the_identity_and_learns(init: Any, layer: bool) -> None:
    head = build_model(config(head="residual", embedding_size=32, head_init=init, layer_norm=layer)).head
    plain = layer_norm(features(), (32,)) if layer else features()
    assert torch.equal(head(features()), plain)
    optimizer = torch.optim.SGD(head.parameters(), 0.01)
    first = [parameter.clone() for parameter in head.parameters()]
    for _ in range(2):  # the first step moves the last layer alone
        optimizer.zero_grad()
        head(features()).square()[:, 0].mean().backward()
        optimizer.step()
    assert not any(torch.equal(old, new) for old, new in zip(first, head.parameters(), strict=True))


@pytest.mark.parametrize("head", ["linear", "linear+layer_norm"])
def test_a_linear_head_begins_as_the_identity(head: Any) -> None:
    model = build_model(config(head=head, embedding_size=32, head_init="identity"))
    expected = features() if head == "linear" else layer_norm(features(), (32,))
    assert torch.equal(model.head(features()), expected)


@pytest.mark.parametrize("whiten", [False, True])
def test_principal_components_are_those_of_numpy(whiten: bool) -> None:
    x = features().double().numpy()
    centred = x - x.mean(0)
    _, singular, rows = np.linalg.svd(centred, full_matrices=False)
    rows = rows * np.sign(rows[np.arange(len(rows)), np.abs(rows).argmax(1)])[:, None]
    variances = singular**2 / (len(x) - 1)
    expected = centred @ rows[:8].T
    if whiten:
        expected = expected / np.sqrt(variances[:8] + centred.var(0, ddof=1).mean())
    weight, bias = principal_components(features(), 8, whiten=whiten)
    found = features().double() @ weight.T + bias
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
    assert (weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all()


@pytest.mark.parametrize("whiten", [False, True])
def test_fewer_images_than_components(whiten: bool) -> None:
    weight, bias = principal_components(features(10), 32, whiten=whiten)
    lengths = weight.norm(dim=1)
    directions = weight / lengths[:, None]
    torch.testing.assert_close(directions @ directions.T, torch.eye(32, dtype=torch.float64))
    assert ((features(10).double() @ weight.T + bias)[:, 9:].abs() < 1e-6).all()  # they differ in nine at most
    assert (lengths.diff() > -1e-9).all()


def test_principal_components_refuse() -> None:
    with pytest.raises(ValueError, match="count is 33, but 32 features have 1 to 32"):
        principal_components(features(), 33)
    with pytest.raises(ValueError, match="the features are not finite"):
        principal_components(features() / 0, 2)


@pytest.mark.parametrize("layer", [False, True])
@pytest.mark.parametrize("head", ["linear", "residual"])
def test_a_head_begins_at_the_principal_components(head: Any, layer: bool) -> None:
    for size in (8, 32):
        model = build_model(config(head=head, head_init="pca", embedding_size=size, layer_norm=layer))
        begin_at_principal_components(model.head, features(), whiten=False)
        centred = layer_norm(features(), (32,)) if layer else features()
        centred = (centred - centred.mean(0)).double()
        gram = model.head(features()).double()
        explained = torch.linalg.svdvals(centred)[:size].square().sum()
        torch.testing.assert_close(gram.square().sum(), explained, rtol=1e-4, atol=0)
        torch.testing.assert_close(gram.mean(0), torch.zeros(size).double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "mlp", "head_width": 6},
        {"head": "residual", "embedding_size": 32},
        {"head": "residual", "head_init": "pca-whitened"},
        {"head_init": "identity", "embedding_size": 32},
        {"head_init": "pca"},
    ],
)
def test_heads_are_loaded_as_they_were_saved(settings: dict[str, Any], tmp_path: Path) -> None:
    model = build_model(config(**settings)).eval()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter))
    save_model(tmp_path, model, {})
    images = torch.randn(3, 1, 28, 28)
    loaded = load_model(tmp_path)[0]
    assert torch.equal(loaded(images), model(images))
    assert loaded.config == model.config
    assert torch.equal(normalize(loaded.features(images)), normalize(model.features(images)))
    again = build_model(config(**settings, weights=str(tmp_path / "model.safetensors")))
    assert again.has_loaded_head
    assert not build_model(
        config(**settings | {"head": "linear", "head_width": None, "head_init": None})
    ).has_loaded_head


def test_the_configuration_refuses() -> None:
    with pytest.raises(ValueError, match="head_width is 0"):
        config(head="mlp", head_width=0)
    with pytest.raises(ValueError, match="head_width is 5 but head 'linear' has no hidden layer"):
        config(head_width=5)
    with pytest.raises(ValueError, match="head_init is 'pca' but the head is an mlp"):
        config(head="mlp", head_init="pca")
    with pytest.raises(ValueError, match="embedding_size is 8 but for head_init 'identity' it must be 32"):
        build_model(config(head_init="identity"))


FEATURES = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))


def test_average_and_maximum_and_their_sum() -> None:
    flat = FEATURES.flatten(2)
    torch.testing.assert_close(AvgPool()(FEATURES), flat.mean(2))
    torch.testing.assert_close(MaxPool()(FEATURES), flat.max(2).values)
    torch.testing.assert_close(AvgMaxPool()(FEATURES), flat.mean(2) + flat.max(2).values)


@pytest.mark.parametrize("p", [1.0, 3.0, 6.5])
def test_gem_is_the_power_mean_of_the_floored_features(p: float) -> None:
    expected = FEATURES.double().flatten(2).clamp(min=1e-6).pow(p).mean(2).pow(1 / p)
    for trained in (True, False):
        torch.testing.assert_close(GeM(p, train_p=trained)(FEATURES).double(), expected, rtol=1e-5, atol=1e-7)


def test_the_power_of_cubic_gem_stays_3() -> None:
    model = build_model(ModelConfig(pooling="cubic-gem", embedding_size=4, width=4))
    assert model.pooling.p == 3
    assert not list(model.pooling.parameters())
    assert not model.pooling.state_dict()
    cubes = FEATURES.clamp(min=1e-6).pow(3).mean((2, 3))
    torch.testing.assert_close(model.pooling(FEATURES), cubes.pow(1 / 3))


def test_gem_keeps_the_dtype_and_loses_no_range_in_half_precision() -> None:
    features = torch.full((1, 2, 3, 3), 300.0, dtype=torch.float16)
    assert GeM(3.0)(features).dtype == torch.float16
    torch.testing.assert_close(GeM(3.0)(features), features[:, :, 0, 0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("arguments", [(0.0, 1e-6), (3.0, 0.0), (float("nan"), 1e-6)])
def test_gem_refuses(arguments: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        GeM(*arguments)
