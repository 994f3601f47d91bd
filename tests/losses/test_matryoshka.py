"""MatryoshkaLoss against its formula in float64."""

from functools import partial
from typing import Any

import pytest
import torch

from proxemic.losses import (
    HISTLoss,
    MagFaceLoss,
    MatryoshkaLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    SoftTripleLoss,
)
from proxemic.losses.user_defined import UserLoss, make_loss

LABELS = torch.tensor([0, 1, 2, 3, 0, 2])


def naive(loss: MatryoshkaLoss, x: torch.Tensor, scale: float) -> float:
    """Sum over prefixes of the cross-entropy of scaled cosines, computed number by number."""
    total = 0.0
    for dim, part in zip(loss.dims, loss.losses, strict=True):
        proxies, values = part.get_parameter("proxies").detach().double()[:, 0], []
        for row, label in zip(x.detach().double()[:, :dim], LABELS.tolist(), strict=True):
            logits = [scale * float(row @ proxy / (row.norm() * proxy.norm())) for proxy in proxies]
            values.append(torch.tensor(logits).double().logsumexp(0).item() - logits[label])
        total += sum(values) / len(values)
    return total


def test_it_is_the_sum_over_the_prefixes() -> None:
    torch.manual_seed(0)
    loss = MatryoshkaLoss(4, 24, proxy_loss=partial(NormalizedSoftmaxLoss, scale=6.0), dims=[10, 3])
    assert loss.dims == (3, 10, 24)
    x = torch.randn(6, 24, dtype=torch.float64, requires_grad=True)
    value = loss(x, LABELS)
    assert value.item() == pytest.approx(naive(loss, x, 6.0), rel=1e-6)
    value.backward()
    assert x.grad is not None
    pairs = [*zip(loss.dims, loss.losses, strict=True)]
    torch.testing.assert_close(x.grad, sum(torch.autograd.grad(part(x[:, :dim], LABELS), x)[0] for dim, part in pairs))
    assert all(parameter.grad is not None for parameter in loss.parameters())


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, SoftTripleLoss, HISTLoss])
def test_any_proxy_loss_is_nested(kind: Any) -> None:
    torch.manual_seed(0)
    loss, other = (MatryoshkaLoss(4, 32, proxy_loss=kind) for _ in range(2))
    assert loss.dims == (8, 16, 32)
    x = torch.randn(6, 32)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(loss(x, LABELS), other(x, LABELS))
    pairs = zip(loss.dims, loss.losses, strict=True)
    assert loss(x, LABELS).item() == pytest.approx(
        sum(part(x[:, :dim], LABELS).item() for dim, part in pairs), rel=1e-5
    )


def test_recipes_train_it_as_a_loss_without_proxies_of_its_own() -> None:
    made = make_loss(partial(MatryoshkaLoss, proxy_loss=ProxyAnchorLoss), 4, 8)
    assert isinstance(made, UserLoss)
    assert made(torch.randn(6, 8), LABELS).ndim == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"proxy_loss": ProxyAnchorLoss, "dims": [9]}, "dims has 9, but embeddings have 8 dimensions"),
        ({"proxy_loss": ProxyAnchorLoss, "dims": [0]}, "dims is 0"),
        ({"proxy_loss": MagFaceLoss}, "does not depend on the lengths"),
        ({"proxy_loss": lambda **_: torch.nn.CrossEntropyLoss()}, "proxy_loss makes CrossEntropyLoss"),
    ],
)
def test_what_cannot_be_nested_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MatryoshkaLoss(4, 8, **given)
