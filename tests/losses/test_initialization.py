"""Initialisation of proxies."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch

from proxemic.losses import (
    AdaFaceLoss,
    ArcFaceLoss,
    CosFaceLoss,
    CurricularFaceLoss,
    ElasticFaceLoss,
    EuclideanSoftmaxLoss,
    MagFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
    SphereFaceLoss,
)


@pytest.mark.parametrize(
    ("loss", "std"),
    [
        # torch's own: kaiming_normal_ of [C·K, D] with mode="fan_out", kaiming_uniform_ of [D, C·K] with a=√5,
        # xavier_uniform_ of [C·K, D]
        (NormalizedSoftmaxLoss, sqrt(2 / 600)),
        (ProxyAnchorLoss, sqrt(2 / 600)),
        (EuclideanSoftmaxLoss, sqrt(2 / 600)),
        (SoftTripleLoss, 1 / sqrt(600) / sqrt(3)),
        (CosFaceLoss, sqrt(6 / (600 + 64)) / sqrt(3)),
        (ArcFaceLoss, 0.01),
        (CurricularFaceLoss, 0.01),
        (ElasticFaceLoss, 0.01),
        (ProxyNCALoss, 1 / 8),
        (ProxyNCAPlusPlusLoss, 1 / 8),
        (SphereFaceLoss, 1 / 8),  # unit vectors in 64 dimensions
        (MagFaceLoss, 1 / 8),
        (AdaFaceLoss, 1 / 8),
    ],
)
def test_spread(loss: Callable[..., ProxyLoss], std: float) -> None:
    torch.manual_seed(0)
    proxies = loss(300, 64, proxies_per_class=2).proxies
    assert proxies.std().item() == pytest.approx(std, rel=0.03)
    assert proxies.mean().item() == pytest.approx(0, abs=0.02 * std)


@pytest.mark.parametrize("loss", [SphereFaceLoss, MagFaceLoss])
def test_unit_directions(loss: Callable[..., ProxyLoss]) -> None:
    torch.testing.assert_close(loss(30, 8).proxies.norm(dim=-1), torch.ones(30, 1))
