"""Which scores enter a gradient, against the analytic gradients, and against the characteristics."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxemic.analysis import every_proxy_loss, plot_gradients, score_dependence
from proxemic.analysis.gradient_dependence import THRESHOLD, draw_gradients
from proxemic.losses import (
    AllPairMultiProxyAnchorLoss,
    DataWiseMultiProxyAnchorLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    WarpedSoftmaxLoss,
)
from proxemic.losses.scores.scoring import Scoring
from proxemic.plots import write_figure

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])

# ∂L/∂S_ic as the papers print it, up to a constant factor: of scores s, labels y, sample i and class c.
Gradient = Callable[[Tensor, Tensor, int, int], Tensor]


def proxy_anchor(s: Tensor, y: Tensor, i: int, c: int) -> Tensor:
    """MPA paper, equation 8: α = 32, δ = 0.1."""
    own = y == c
    sign = -1 if own[i] else 1
    terms = (32 * (sign * s[own if own[i] else ~own, c] + 0.1)).exp()
    return sign * (32 * (sign * s[i, c] + 0.1)).exp() / (1 + terms.sum())


def data_wise(s: Tensor, y: Tensor, i: int, c: int) -> Tensor:
    """Equation 14."""
    if c == y[i]:
        return -1 / (1 + (32 * (s[i, c] - 0.1)).exp())
    others = torch.arange(s.shape[1]) != y[i]
    return (32 * (s[i, c] + 0.1)).exp() / (1 + (32 * (s[i, others] + 0.1)).exp().sum())


def all_pair(s: Tensor, y: Tensor, i: int, c: int) -> Tensor:
    """Equations 15 and 18."""
    sign = torch.where(torch.arange(s.shape[1]) == y[i], -1, 1)
    terms = (32 * (sign * s[i] + 0.1)).exp()
    return sign[c] * terms[c] / (1 + terms.sum())


def soft_triple(s: Tensor, y: Tensor, i: int, c: int) -> Tensor:
    """Equation 5, as it must be: λ = 20, δ = 0.01."""
    margin = torch.where(torch.arange(s.shape[1]) == y[i], 0.01, 0.0)
    shares = (20 * (s[i] - margin)).softmax(0)
    return shares[c] - (1 if c == y[i] else 0)


def proxy_nca(s: Tensor, y: Tensor, i: int, c: int) -> Tensor:
    """The logarithm of a ratio without the positive below."""
    if c == y[i]:
        return torch.tensor(-1.0)
    others = torch.arange(s.shape[1]) != y[i]
    return s[i, c].exp() / s[i, others].exp().sum()


def depends(gradient: Gradient, labels: Tensor, i: int, c: int) -> Tensor:
    """By autograd through the formula, at scores where none of it vanishes."""
    s = (0.01 * torch.rand(len(labels), 3, generator=torch.Generator().manual_seed(0))).double().requires_grad_()
    value = gradient(s, labels, i, c)
    return torch.autograd.grad(value, s)[0] != 0 if value.requires_grad else torch.zeros_like(s, dtype=torch.bool)


@pytest.mark.parametrize(
    ("loss", "gradient"),
    [
        (ProxyAnchorLoss, proxy_anchor),
        (DataWiseMultiProxyAnchorLoss, data_wise),
        (AllPairMultiProxyAnchorLoss, all_pair),
        (SoftTripleLoss, soft_triple),
        (ProxyNCALoss, proxy_nca),
    ],
)
def test_the_scores_that_enter_are_those_of_the_formula(
    loss: Callable[[int, int], ProxyLoss], gradient: Gradient
) -> None:
    labels = torch.tensor([0, 1, 0, 2, 1])  # unequal classes, in no order
    found = score_dependence(loss(4, 2), labels, draws=16, seed=1)
    assert found.shape == (5, 3, 5, 3)
    for i in range(5):
        for c in range(3):
            assert torch.equal(found[i, c] > THRESHOLD, depends(gradient, labels, i, c)), (i, c)


# What characteristics says of each, which test_six_characteristics.py holds against the paper.
NO_P_N = ("ProxyNCALoss", "ProxyAnchorLoss", "MultiProxyAnchorLoss", "DataWiseMultiProxyAnchorLoss")


@pytest.mark.parametrize("name", every_proxy_loss())
def test_every_loss_agrees_with_its_characteristics(name: str) -> None:
    enters = score_dependence(every_proxy_loss()[name], LABELS, draws=16, seed=1) > THRESHOLD
    classes = torch.arange(3)
    positive = (LABELS.unsqueeze(1) == classes).flatten()
    sample = torch.arange(6).repeat_interleave(3)
    pairs = enters.flatten(2).flatten(0, 1) & ~torch.eye(18, dtype=torch.bool)
    same = sample.unsqueeze(1) == sample
    of_positive, on_positive = positive.unsqueeze(1), positive.unsqueeze(0)
    unstable = name in ("ProxyAnchorLoss", "MultiProxyAnchorLoss")
    assert (pairs & ~same).any() == unstable
    assert (pairs & of_positive & on_positive).any() == unstable  # P-P: only two samples of a class
    assert (pairs & ~of_positive & ~on_positive).any()  # N-N: all
    opposite = pairs & (of_positive != on_positive)
    assert opposite.any() == (name not in NO_P_N)
    if opposite.any():  # both ways, and every one of the sample
        assert torch.equal(opposite, same & (of_positive != on_positive))


def test_a_gradient_is_measured_where_it_trains() -> None:
    # Below α the value is the distance itself, and the gradient k1: Δ enters it through the weight alone.
    loss = WarpedSoftmaxLoss(3, 2, alpha=1e6, k1=0.5, k2=2.0)
    found = score_dependence(loss, LABELS, draws=8)
    assert torch.equal(found[0, 0] > THRESHOLD, (torch.arange(6) == 0).unsqueeze(1).expand(6, 3))


class _OfObjective(ProxyLoss):
    """An objective of the positives and the negatives, the latter summed as e^(4S)."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(3, 2, scoring=Scoring(4.0))
        self.function = function

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.function(positive, negative).sum()


def test_the_size_of_a_dependence() -> None:
    found = score_dependence(_OfObjective(lambda positive, _: positive.exp()), LABELS, draws=16)
    own = LABELS.unsqueeze(1) == torch.arange(3)
    expected = torch.diag(own.flatten()).unflatten(1, (6, 3)).unflatten(0, (6, 3))
    assert torch.equal(found > THRESHOLD, expected)
    # e^P falls by the factor e^(-1/4) at most and by e^(-1/8) at least.
    changes = found[expected]
    assert changes.min() > 1 - torch.tensor(-1 / 8).exp()
    assert changes.max() < 1 - torch.tensor(-1 / 4).exp()


def test_which_score_depends_on_which() -> None:
    # The pull grows with the negatives; through a value without gradient, so that they know nothing of it.
    loss = _OfObjective(lambda positive, negative: positive * negative.exp().detach())
    found = score_dependence(loss, LABELS, draws=16) > THRESHOLD
    positive = LABELS.unsqueeze(1) == torch.arange(3)
    first = torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.bool).unsqueeze(1)
    assert torch.equal(found[0, 0], first & ~positive)
    assert not found[~positive].any()


def test_the_same_seed_is_the_same_and_nothing_is_left_behind() -> None:
    loss = every_proxy_loss()["HISTLoss"]
    before, state = {name: value.clone() for name, value in loss.state_dict().items()}, torch.get_rng_state()
    with torch.no_grad():
        assert torch.equal(*(score_dependence(loss, LABELS, draws=2, seed=3) for _ in range(2)))
    assert not torch.equal(*(score_dependence(loss, LABELS, draws=2, seed=seed) for seed in (3, 4)))
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
    assert all(value.grad is None for value in loss.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_refused() -> None:
    loss = ProxyAnchorLoss(3, 2)
    for labels in ([], [0, 0], [0, 3], [-1, 1]):
        with pytest.raises(ValueError, match="labels are"):
            score_dependence(loss, torch.tensor(labels, dtype=torch.long))
    with pytest.raises(ValueError, match="draws is 0"):
        score_dependence(loss, LABELS, draws=0)


def test_embeddings_lie_beside_their_proxies() -> None:
    labels = torch.tensor([0, 1, 1, 1, 2, 2])
    lines = plot_gradients(torch.zeros(6, 3), labels, 0, 0).lines[1:]
    turns = [math.atan2(line.get_ydata()[0], line.get_xdata()[0]) for line in lines]
    embeddings, proxies = turns[:6], turns[6:]
    assert embeddings[0] == pytest.approx(proxies[0]), "a class of one image"
    for label in (1, 2):
        aside = [math.remainder(embeddings[i] - proxies[label], 2 * math.pi) for i in range(6) if labels[i] == label]
        assert sum(aside) == pytest.approx(0, abs=1e-9)
        assert math.pi / 3 > aside[0] > aside[-1] > -math.pi / 3, "within its sector"


def test_plots_show_the_dependence(tmp_path: Path) -> None:
    dependence = torch.zeros(6, 3, dtype=torch.float64)
    dependence[0, 1], dependence[1, 0], dependence[2, 0] = 0.5, 1.0, 0.2
    axes = plot_gradients(dependence, LABELS, 0, 1, title="$")
    lines = [line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
    assert [(line.get_color(), line.get_linewidth()) for line in lines] == [
        ("#f0e442", 9),
        ("#0072b2", pytest.approx(1.6)),
        ("#d55e00", pytest.approx(2.4)),
        ("#0072b2", pytest.approx(1.12)),
    ]
    assert lines[0].get_xydata().tolist() == lines[1].get_xydata().tolist()
    several = plot_gradients(dependence, LABELS, 0, 1, proxies_per_class=4)
    assert len(several.lines) == len(axes.lines) + 6
    found = {"one": (1, torch.ones(6, 3, 6, 3, dtype=torch.float64))}
    written = [write_figure(draw_gradients(found, LABELS), tmp_path / name, [], []) for name in ("a", "b")]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
