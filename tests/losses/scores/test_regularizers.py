"""Regularisers against their oracles, and added to every loss."""

import copy

import pytest
import torch
from torch import Tensor, nn

from losses import oracles
from losses.test_losses import CASES, make
from proxemic.losses import (
    CenterRegularizer,
    MeanProxyNorm,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    Regularizer,
    SamplingWeights,
)


@pytest.mark.parametrize("proxies", [1, 2, 4])
def test_values_and_gradients_equal_the_oracles(proxies: int) -> None:
    w = torch.randn(6, proxies, 5, dtype=torch.float64, requires_grad=True)
    assert MeanProxyNorm(0.7)(w).item() == pytest.approx(0.7 * oracles.mean_proxy_norm(w).item())
    assert CenterRegularizer(0.2)(w).item() == pytest.approx(0.2 * oracles.center_regularizer(w).item())
    assert torch.autograd.gradcheck(MeanProxyNorm(0.7), w)
    if proxies > 1:
        assert torch.autograd.gradcheck(CenterRegularizer(0.2), w)


def test_opposite_proxies_have_a_mean_of_zero_and_a_finite_gradient() -> None:
    w = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]], requires_grad=True)
    value = MeanProxyNorm(1.0)(w)
    value.backward()
    assert value.item() == 0
    assert w.grad is not None
    assert w.grad.isfinite().all()


def test_coinciding_proxies_are_merged_and_others_drawn_together() -> None:
    w = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]], requires_grad=True)
    CenterRegularizer(1.0)(w).backward()
    assert w.grad is not None
    assert w.grad.isfinite().all()
    assert w.grad[0, 2, 0] < 0 < w.grad[0, 0, 0].abs() + w.grad[0, 0, 1].abs()


class SquaredLength(Regularizer):
    """A mean over classes, differentiated by autograd."""

    separable = True

    def value(self, proxies: Tensor, sampling: SamplingWeights, state: Tensor | None = None) -> Tensor:
        return sampling.sum(proxies.square().sum((1, 2))) / sampling.total


class ClosedSquaredLength(SquaredLength):
    """The same term with a gradient in closed form."""

    def add_gradient(
        self, grad: Tensor, proxies: Tensor, sampling: SamplingWeights, state: Tensor | None, factor: Tensor | float
    ) -> None:
        weights = torch.ones(len(proxies)) if sampling.weights is None else sampling.weights
        grad.add_(proxies * weights.view(-1, 1, 1) * (2 * factor / sampling.total))


class WholeSquaredLength(SquaredLength):
    """The same term computed from all proxies at once."""

    separable = False


@pytest.mark.parametrize("case", CASES)
def test_regularizers_add_their_value_and_gradient_to_every_loss(case: str) -> None:
    regularizers = (MeanProxyNorm(0.7), CenterRegularizer(0.3), SquaredLength(0.2), WholeSquaredLength(0.1))
    for chunk in (2, 5, None):
        torch.manual_seed(0)
        loss = make(case, proxies=2, chunk_size=chunk).double()
        both = copy.deepcopy(loss)
        both.regularizers.extend(regularizers)
        x, y = torch.randn(4, 7, dtype=torch.float64), torch.tensor([0, 1, 1, 4])
        plain = 0.3 * loss.proxies.square().sum((1, 2)).mean()
        value, expected = (
            both(x, y),
            loss(x, y) + sum(regularizer(loss.proxies) for regularizer in regularizers[:2]) + plain,
        )
        torch.testing.assert_close(value, expected)
        (got,) = torch.autograd.grad(value, both.proxies)
        (want,) = torch.autograd.grad(expected, loss.proxies)
        torch.testing.assert_close(got, want)


def test_a_gradient_by_autograd_is_that_in_closed_form_also_of_sampled_classes() -> None:
    results = []
    for kind in (SquaredLength, ClosedSquaredLength, WholeSquaredLength):
        torch.manual_seed(0)
        loss = ProxyAnchorLoss(40, 4, sample_rate=0.3, chunk_size=5, regularizers=[kind(0.5)])
        x, y = torch.randn(3, 4), torch.tensor([0, 7, 39])
        value = loss(x, y)
        results.append((value, torch.autograd.grad(value, loss.proxies)[0].to_dense()))
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            torch.testing.assert_close(got, want)


def test_a_users_regularizer_is_any_module() -> None:
    class Length(nn.Module):
        def forward(self, proxies: Tensor) -> Tensor:
            return proxies.square().sum()

    loss = NormalizedSoftmaxLoss(50, 4, regularizers=(Length(), CenterRegularizer(0.3)), chunk_size=7)
    plain = NormalizedSoftmaxLoss(50, 4, regularizers=(CenterRegularizer(0.3),), chunk_size=7)
    plain.load_state_dict(loss.state_dict())
    x, y = torch.randn(3, 4), torch.tensor([0, 7, 49])
    torch.testing.assert_close(loss(x, y), plain(x, y) + loss.proxies.square().sum())
    got, want = (torch.autograd.grad(value(x, y), value.proxies)[0] for value in (loss, plain))
    torch.testing.assert_close(got, want + 2 * loss.proxies.detach())
