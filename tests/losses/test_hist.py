"""HIST against its oracle, which needs more parameters than proxies."""

import pytest
import torch

from losses import oracles
from proxemic.losses import HISTLoss


@pytest.mark.parametrize("y", [[3, 0, 3, 1], [2, 2, 2], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("chunk", [1, 2, 5, None])
def test_value_and_gradients_equal_the_oracle(y: list[int], chunk: int | None) -> None:
    torch.manual_seed(0)
    # In float64, since batch norm of few rows multiplies rounding errors: by up to 1/√1e-5 where all rows are alike.
    loss = HISTLoss(5, 7, hidden=6, tau=8.0, alpha=0.9, chunk_size=chunk, init=torch.nn.init.normal_).double()
    x = torch.randn(len(y), 7, dtype=torch.float64, requires_grad=True)
    network = (loss.enter.weight, loss.enter.bias, loss.leave.weight, loss.leave.bias)
    ours = (x, loss.proxies, loss.log_variances, *network)
    theirs = tuple(our.detach().double().requires_grad_() for our in ours)

    value, expected = loss(x, torch.tensor(y)), oracles.hist(theirs, y, 8.0, 0.9)

    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    got, want = torch.autograd.grad(value, ours), torch.autograd.grad(expected, theirs)
    for first, second in zip(got, want, strict=True):
        assert (first.double() - second).norm() <= 1e-9 * second.norm() + 1e-9
    assert loss.float()(x.float(), torch.tensor(y)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_batch_of_one_has_a_loss() -> None:
    torch.manual_seed(1)
    loss = HISTLoss(5, 7, hidden=6)
    x = torch.randn(1, 7, requires_grad=True)
    value = loss(x, torch.tensor([2]))
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_the_loss_is_the_same_before_and_after_eval_and_changes_no_buffer() -> None:
    torch.manual_seed(2)
    loss = HISTLoss(5, 7, hidden=6)
    x, y = torch.randn(4, 7), torch.tensor([0, 1, 1, 3])
    before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
    assert torch.equal(loss(x, y), loss.eval()(x, y))
    assert all(torch.equal(tensor, before[key]) for key, tensor in loss.state_dict().items())


def test_samples_whose_softmax_underflows_still_have_a_gradient() -> None:
    # exp(−τd) is 0 in float32 for every class here: the authors' code drops such samples.
    torch.manual_seed(3)
    loss = HISTLoss(3, 4, tau=1e3, graph_weight=0.0)
    x = -loss.proxies[:1, 0].detach().clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(x, torch.tensor([0])), x)
    assert grad.norm() > 1
