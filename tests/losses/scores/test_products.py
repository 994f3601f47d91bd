"""Errors of products with rounded operands, and exactness of the scores of target classes."""

import copy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from losses.test_losses import CASES, gradients, make
from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.losses.scores.products import Precision, Products
from proxemic.losses.scores.streaming import streamed_scores

BITS: dict[Precision | None, int] = {None: 24, "float32": 24, "tf32": 11, "half": 11, "split": 22}


def multiplied(precision: Precision | None, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    products = Products(precision)
    out, into = torch.empty(len(a), b.shape[1]), torch.ones(len(a), b.shape[1])
    one, other = products.operand(a), products.operand(b)
    return products.multiply(one, other, out), products.add(into, one, other) - 1


@pytest.mark.cpu
@pytest.mark.parametrize("precision", BITS)
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_errors_are_those_of_the_bits(precision: Precision | None, size: float) -> None:
    torch.manual_seed(0)
    a, b = size * torch.randn(50, 200), torch.randn(200, 40) / size
    want = a.double() @ b.double()
    bound = 2.0 ** -BITS[precision] * 2 * (a.double().abs() @ b.double().abs())
    for found in multiplied(precision, a, b):
        error = (found - want).abs()
        assert (error <= bound + 1e-5 * want.abs().max()).all()
    error = (multiplied(precision, a, b)[0] - want).abs().max()
    if BITS[precision] == 11:
        assert error > 2.0**-16 * want.abs().max()  # operands are rounded indeed
    else:
        assert error < 2.0**-18 * want.abs().max()


@pytest.mark.cpu
@pytest.mark.parametrize("precision", ["tf32", "half"])
def test_operands_keep_eleven_bits(precision: Precision) -> None:
    kept, lost = 1 + 2.0**-10, 1 + 2.0**-12
    x = torch.tensor([[kept, lost, -kept, 0.0, 2.0**-9 * kept]])
    want = torch.tensor([[kept, 1.0, -kept, 0.0, 2.0**-9 * kept]])
    assert torch.equal(Products(precision).operand(x).high, want)


@pytest.mark.cpu
def test_zeros_stay() -> None:
    for precision in BITS:
        assert (multiplied(precision, torch.zeros(3, 4), torch.ones(4, 2))[0] == 0).all()


def test_float64_is_never_rounded() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    assert all(Products(precision).operand(x).high is x for precision in get_args(Precision))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("tf32", 5e-3), ("half", 5e-3), ("split", 5e-5), ("float32", 5e-5)]
)
def test_every_loss_nearly_equals_itself_in_float64(case: str, precision: Precision, tolerance: float) -> None:
    for proxies in (1, 3):
        torch.manual_seed(0)
        loss = make(case, 40, 32, proxies, chunk_size=16, products=precision)
        x, y = torch.randn(12, 32), torch.randint(40, (12,))
        want, found = (
            results(module, x.to(dtype), y)
            for module, dtype in ((copy.deepcopy(loss).double(), torch.float64), (loss, torch.float32))
        )
        for got, right in zip(found, want, strict=True):
            assert (got - right).norm() <= tolerance * right.norm(), precision


def results(loss: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x = x.requires_grad_()
    value = loss(x, y)
    return value.detach(), *gradients(value, x, loss.proxies)


def test_positive_scores_are_exact_in_half_precision() -> None:
    torch.manual_seed(0)
    y = torch.arange(20)
    loss = NormalizedSoftmaxLoss(20, 32, init=torch.nn.init.normal_)
    x = torch.randn(20, 32)
    positive, _, _ = streamed_scores(x, loss.proxies, y, loss.scoring, 7, products=Products("half"))
    want = torch.nn.functional.cosine_similarity(x.double(), loss.proxies[:, 0].double())
    assert (positive - want).abs().max() < 2e-7


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"products is 'double', but must be float32, tf32, half or split, or None"):
        NormalizedSoftmaxLoss(3, 4, products="double")  # type: ignore[arg-type]
