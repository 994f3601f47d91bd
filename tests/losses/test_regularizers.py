import pytest
import torch

from losses import oracles
from proxemic.losses import CenterRegularizer, MeanProxyNorm


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


@pytest.mark.parametrize("regularizer", [MeanProxyNorm, CenterRegularizer])
def test_a_negative_weight_is_refused(regularizer: type[MeanProxyNorm] | type[CenterRegularizer]) -> None:
    with pytest.raises(ValueError, match="weight is -1"):
        regularizer(-1.0)
