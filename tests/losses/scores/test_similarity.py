"""Embeddings and proxies of any length in float32: a finite loss has finite gradients on every path."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from losses.test_losses import CASES, gradients
from proxemic.losses import (
    CenterRegularizer,
    EuclideanSoftmaxLoss,
    MeanProxyNorm,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
)
from proxemic.losses.initialization import unit_directions
from proxemic.losses.scores.similarity import unit

LENGTHS = torch.tensor([1, 0, 1e-38, 1e-30, 1e-22, 1e-20, 1e-16, 1e-13, 1e-11, 1e9, 1e15, 1e19, 1e20, 1e30])
Y = torch.tensor([0, 1, 1, 4])


def of_length(x: Tensor, length: Tensor | float) -> Tensor:
    """Scale rows to a length, in float64, where the squares of these lengths neither overflow nor vanish."""
    return (length * x.double() / x.double().norm(dim=-1, keepdim=True)).float()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_finite(case: str) -> None:
    for chunk, (proxies, rate) in product((4, None), ((1, 1.0), (3, 0.5))):
        check_finite(case, chunk, proxies, rate)


def check_finite(case: str, chunk: int | None, proxies: int, rate: float) -> None:
    torch.manual_seed(0)
    lengths = LENGTHS[LENGTHS < 1e9] if case == "warped-functions" else LENGTHS  # t² overflows where t does not
    classes = len(lengths)
    keywords = CASES[case].keywords | {"regularizers": (MeanProxyNorm(0.5), CenterRegularizer(0.2))}
    loss = CASES[case].loss(
        classes,
        7,
        proxies_per_class=proxies,
        chunk_size=chunk,
        sample_rate=rate,
        init=torch.nn.init.normal_,
        **keywords,
    )
    x, w = torch.randn(classes, 7), loss.proxies.detach().clone()
    mixed = lengths.view(-1, 1)
    for short, short_too in (
        (mixed, torch.stack([mixed.roll(-3 * k) for k in range(proxies)], dim=1)),
        (mixed, 1),
        (1, mixed.unsqueeze(1)),
        (1e-22, 1e-22),
        (lengths.max(), lengths.max()),
    ):
        embeddings = of_length(x, short).requires_grad_()
        with torch.no_grad():
            loss.proxies.copy_(of_length(w, short_too))
        value = loss(embeddings, torch.arange(classes).roll(1))
        assert value.isfinite()
        for grad in torch.autograd.grad(value, (embeddings, *loss.parameters())):
            assert (grad._values() if grad.is_sparse else grad).isfinite().all()


@pytest.mark.parametrize("loss", [NormalizedSoftmaxLoss, ProxyAnchorLoss])
@pytest.mark.parametrize("chunk", [2, None])
def test_cosines_keep_their_digits_at_lengths_down_to_the_shortest(
    loss: Callable[..., ProxyLoss], chunk: int | None
) -> None:
    torch.manual_seed(0)
    regularizers = (MeanProxyNorm(0.5), CenterRegularizer(0.2))
    module = loss(5, 7, proxies_per_class=2, regularizers=regularizers, chunk_size=chunk, init=torch.nn.init.normal_)
    x, w = torch.randn(4, 7), module.proxies.detach().clone()
    found = []
    for length in (1.0, 1e-11, 1e12):
        short = of_length(x, length).requires_grad_()
        with torch.no_grad():
            module.proxies.copy_(of_length(w, length))
        value = module(short, Y)
        found.append((value, *(length * grad for grad in gradients(value, short, module.proxies))))
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            assert (got - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0.0, 1e-13])
def test_what_is_shorter_than_the_shortest_is_zero_without_gradient(dtype: torch.dtype, length: float) -> None:
    x = torch.tensor([[length, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    unit(x)[0].sum().backward()
    assert torch.equal(unit(x)[0], torch.zeros(2, dtype=dtype))
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("chunk", [2, None])
def test_a_distance_that_overflows_has_no_gradient(chunk: int | None) -> None:
    torch.manual_seed(0)
    far, without = EuclideanSoftmaxLoss(5, 7, chunk_size=chunk), EuclideanSoftmaxLoss(4, 7, chunk_size=chunk)
    with torch.no_grad():
        far.proxies[4] = 1e25
        without.proxies.copy_(far.proxies[:4])
    x, y = torch.randn(3, 7, requires_grad=True), torch.tensor([0, 1, 1])
    (got, moved), (want, others) = (gradients(value(x, y), x, value.proxies) for value in (far, without))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(moved[:4], others)
    assert (moved[4] == 0).all()


def test_the_self_distance_of_a_proxy_without_direction_is_zero() -> None:
    w = torch.zeros(2, 3, 4, requires_grad=True)
    with torch.no_grad():
        w[:, 0, 0] = 1e-20
        w[:, 1] = 1e25
    value = CenterRegularizer(1.0)(w)
    assert value.item() == pytest.approx(2**0.5 / 2)  # √(2 − 2·0) for each of 3 pairs, over 2 · 3
    assert (gradients(value, w)[0] == 0).all()


def test_unit_directions_of_one_dimension_may_be_drawn_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = torch.empty(3, 2, 1)
    monkeypatch.setattr(torch.nn.init, "uniform_", lambda tensor, *_: tensor.zero_())
    unit_directions(proxies)
    assert (proxies == 1).all()
