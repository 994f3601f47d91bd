"""Pooling against its formulas."""

import pytest
import torch

from proxemic.models import AvgMaxPool, AvgPool, GeM, MaxPool, ModelConfig, build_model

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


def test_gem_trains_its_exponent_from_any_features() -> None:
    pool = GeM()
    pool(FEATURES * 0).sum().backward()
    pool(FEATURES).sum().backward()
    [(name, power)] = pool.named_parameters()
    assert name == "p"
    assert power.grad is not None
    assert power.grad.isfinite()
    assert power.grad != 0


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
