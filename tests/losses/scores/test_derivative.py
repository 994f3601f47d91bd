"""Second derivatives of losses are right or raise an error."""

from typing import Any

import pytest
import torch

from proxemic.losses import (
    AllPairMultiProxyAnchorLoss,
    ArcFaceLoss,
    MultiProxyAnchorLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    SoftTripleLoss,
)

pytestmark = pytest.mark.cpu

X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
LABELS = torch.arange(6) % 5


@pytest.mark.parametrize("kind", [ArcFaceLoss, ProxyAnchorLoss, SoftTripleLoss, MultiProxyAnchorLoss])
def test_second_derivatives_of_few_scores_are_right(kind: Any) -> None:
    loss = kind(5, 4, proxies_per_class=2).double()
    assert torch.autograd.gradgradcheck(
        lambda x, w: torch.func.functional_call(loss, {"proxies": w}, (x, LABELS)), (X, loss.proxies)
    )


@pytest.mark.parametrize(
    "loss",
    [
        ArcFaceLoss(5, 4, chunk_size=2),
        ProxyAnchorLoss(5, 4, chunk_size=2),
        ProxyAnchorLoss(5, 4, chunk_size=5),
        AllPairMultiProxyAnchorLoss(5, 4, chunk_size=2),
    ],
)
def test_second_derivatives_of_chunks_are_an_error(loss: ProxyLoss) -> None:
    loss.double()
    for source in (X, loss.proxies):
        (grad,) = torch.autograd.grad(loss(X, LABELS), source, create_graph=True)
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(grad.square().sum(), source)
