"""Gradients of the objectives against the closed forms in the multi-proxy anchor paper, with its errata."""

from collections.abc import Callable
from math import exp

import pytest
import torch
from torch import Tensor

from proxemic.losses import (
    AllPairMultiProxyAnchorLoss,
    DataWiseMultiProxyAnchorLoss,
    MultiProxyAnchorLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    SoftTripleLoss,
)
from proxemic.losses.margins import angular_margin, multiplied_angle
from proxemic.losses.scores.scoring import reduce_scores

ALPHA, DELTA = 4.0, 0.1  # α small enough for every term to count
LABELS = [0, 2, 2, 3, 2]
CLASSES = 5


def soft_triple(s: list[list[float]], i: int, c: int) -> float:
    """(5): the positive case −λ/(1 + l⁺/Σ l⁻), the other λ l⁻/(l⁺ + Σ l⁻); the mean over the batch, where (4) sums."""
    own = LABELS[i]
    plus = exp(ALPHA * (s[i][own] - DELTA))
    minus = {k: exp(ALPHA * s[i][k]) for k in range(CLASSES) if k != own}
    total = sum(minus.values())
    value = -ALPHA / (1 + plus / total) if c == own else ALPHA * minus[c] / (plus + total)
    return value / len(LABELS)


def mpa(s: list[list[float]], i: int, c: int) -> float:
    """(8)."""
    if LABELS[i] == c:
        plus = {j: exp(-ALPHA * (s[j][c] - DELTA)) for j in range(len(LABELS)) if LABELS[j] == c}
        return -ALPHA * plus[i] / (1 + sum(plus.values())) / len(set(LABELS))
    minus = {j: exp(ALPHA * (s[j][c] + DELTA)) for j in range(len(LABELS)) if LABELS[j] != c}
    return ALPHA * minus[i] / (1 + sum(minus.values())) / CLASSES


def mpa_relative(s: list[list[float]], i: int, c: int) -> float:
    """(9): by the score itself and its differences to the others of its sign; the second case is for X⁻."""
    others = [j for j in range(len(LABELS)) if (LABELS[j] == c) == (LABELS[i] == c)]
    if LABELS[i] == c:
        itself = exp(-ALPHA * (DELTA - s[i][c]))
        return -ALPHA / (itself + sum(exp(-ALPHA * (s[j][c] - s[i][c])) for j in others)) / len(set(LABELS))
    itself = exp(-ALPHA * (s[i][c] + DELTA))
    return ALPHA / (itself + sum(exp(ALPHA * (s[j][c] - s[i][c])) for j in others)) / CLASSES


def mpa_dw(s: list[list[float]], i: int, c: int) -> float:
    """(14), with S_DR = S(x_i, c) − S(x_i, c')."""
    own = LABELS[i]
    if c == own:
        return -ALPHA / (exp(-ALPHA * (DELTA - s[i][own])) + 1) / len(LABELS)
    relative = sum(exp(ALPHA * (s[i][k] - s[i][c])) for k in range(CLASSES) if k != own)
    return ALPHA / (exp(-ALPHA * (s[i][c] + DELTA)) + relative) / len(LABELS)


def mpa_ap(s: list[list[float]], i: int, c: int) -> float:
    """(18), of S' = δ − S for the own class and S + δ for the others; times dS'/dS = ∓1."""
    moved = [DELTA - s[i][k] if k == LABELS[i] else s[i][k] + DELTA for k in range(CLASSES)]
    value = ALPHA / (exp(-ALPHA * moved[c]) + sum(exp(ALPHA * (item - moved[c])) for item in moved)) / len(LABELS)
    return -value if c == LABELS[i] else value


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (SoftTripleLoss(CLASSES, 3, scale=ALPHA, margin=DELTA), soft_triple),
        (ProxyAnchorLoss(CLASSES, 3, alpha=ALPHA, margin=DELTA), mpa),
        (MultiProxyAnchorLoss(CLASSES, 3, alpha=ALPHA, margin=DELTA), mpa),
        (MultiProxyAnchorLoss(CLASSES, 3, alpha=ALPHA, margin=DELTA), mpa_relative),
        (DataWiseMultiProxyAnchorLoss(CLASSES, 3, alpha=ALPHA, margin=DELTA), mpa_dw),
        (AllPairMultiProxyAnchorLoss(CLASSES, 3, alpha=ALPHA, margin=DELTA), mpa_ap),
    ],
    ids=["5 SoftTriple", "8 Proxy-Anchor", "8 MPA", "9 MPA", "14 MPA-DW", "18 MPA-AP"],
)
def test_gradients_are_the_published_ones(
    loss: ProxyLoss, formula: Callable[[list[list[float]], int, int], float]
) -> None:
    torch.manual_seed(0)
    scores = (2 * torch.rand(len(LABELS), CLASSES, dtype=torch.float64) - 1).requires_grad_()
    labels = torch.tensor(LABELS)
    value = loss.objective(*reduce_scores(scores, labels, loss.scoring), labels, torch.zeros(len(LABELS), 3)).mean()
    (got,) = torch.autograd.grad(value, scores)
    plain = scores.tolist()
    want = torch.tensor([[formula(plain, i, c) for c in range(CLASSES)] for i in range(len(LABELS))])
    torch.testing.assert_close(got, want.double(), rtol=1e-6, atol=1e-9)


def test_arc_face_keeps_the_gradient_of_its_margin() -> None:
    # What arcface_torch passes is the cosine's own, 64: at cos θ = 0.5 the derivative of 64 cos(θ + 0.5) is 73.9.
    cosine = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(64 * angular_margin(cosine, 0.5).sum(), cosine)
    theta = torch.arccos(cosine.detach())
    assert slope.item() == pytest.approx((64 * torch.sin(theta + 0.5) / torch.sin(theta)).item())
    assert slope.item() > 70


def _angles(n: int) -> Tensor:
    return torch.linspace(0, torch.pi, n, dtype=torch.float64)


@pytest.mark.parametrize("m", [0.0, 0.3, 0.5, torch.pi / 2])
def test_the_angular_margin_is_the_cosine_of_the_sum_and_falls_all_the_way(m: float) -> None:
    theta = _angles(1001)
    value = angular_margin(theta.cos(), m)
    inside = theta + m <= torch.pi - 1e-9
    torch.testing.assert_close(value[inside], (theta[inside] + m).cos(), rtol=0, atol=1e-7)
    assert (value.diff() < 1e-12).all()


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
def test_the_multiplied_angle_is_continuous_and_falls_from_1_to_1_minus_2m(m: int) -> None:
    value = multiplied_angle(_angles(2001).cos(), m)
    assert (value.diff() < 1e-12).all()
    assert value.diff().abs().max() < 2 * m * torch.pi / 2000
    assert value[0].item() == pytest.approx(1)
    assert value[-1].item() == pytest.approx(1 - 2 * m)


@pytest.mark.parametrize("at", [-1.0, 1.0])
def test_margins_have_finite_gradients_at_the_ends(at: float) -> None:
    cosine = torch.tensor([at, at * (1 + 1e-7)], requires_grad=True)
    for value in (angular_margin(cosine, 0.5), multiplied_angle(cosine, 4)):
        (slope,) = torch.autograd.grad(value.sum(), cosine)
        assert slope.isfinite().all()
