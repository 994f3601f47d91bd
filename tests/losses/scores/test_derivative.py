"""Second derivatives of losses are right or an error."""

from typing import Any

import pytest
import torch

from proxemic.losses import AllPairMultiProxyAnchorLoss, ArcFaceLoss, CenterRegularizer, ProxyAnchorLoss, ProxyLoss

pytestmark = pytest.mark.cpu

X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
LABELS = torch.arange(6) % 5


@pytest.mark.parametrize("kind", [ArcFaceLoss, ProxyAnchorLoss])
def test_of_few_scores_they_are_right(kind: Any) -> None:
    loss = kind(5, 4).double()
    assert torch.autograd.gradgradcheck(lambda x: loss(x, LABELS), (X,))


@pytest.mark.parametrize(
    "loss",
    [
        ArcFaceLoss(5, 4, chunk_size=2),
        ProxyAnchorLoss(5, 4, chunk_size=2),
        ProxyAnchorLoss(5, 4, chunk_size=5),
        AllPairMultiProxyAnchorLoss(5, 4, chunk_size=2),
        ArcFaceLoss(5, 4, proxies_per_class=2, regularizers=(CenterRegularizer(),)),
    ],
)
def test_of_chunks_they_are_an_error(loss: ProxyLoss) -> None:
    loss.double()
    for source in (X, loss.proxies):
        (grad,) = torch.autograd.grad(loss(X, LABELS), source, create_graph=True)
        if source is X and not loss.chunk_size:
            continue  # of which the regulariser knows nothing
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(grad.square().sum(), source)
