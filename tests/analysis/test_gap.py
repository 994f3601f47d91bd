"""Minimisers of the softmax loss and the theorems of the mean-proxy paper, against plain formulas in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor

from proxemic.analysis.gap import class_directions, class_minimizers, gap_bounds, softmax_form, squared_gaps
from proxemic.losses import (
    ArcFaceLoss,
    NormalizedSoftmaxLoss,
    PairwiseLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
)
from proxemic.losses.scores.similarity import unit

SCALES = st.sampled_from([0.3, 1.0, 4.0, 20.0, 64.0])


@st.composite
def proxies(draw: st.DrawFn, most: int = 30) -> Tensor:
    """Unit rows, anywhere or around a common direction."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    classes, dim = draw(st.integers(2, most)), draw(st.integers(2, 8))
    spread = draw(st.sampled_from([0.1, 0.5, 2.0, math.inf]))
    rows = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return unit(rows if spread == math.inf else torch.eye(1, dim, dtype=torch.float64) + spread * rows)


def naive_loss(w: Tensor, own: int, x: Tensor, scale: float) -> float:
    exponents = [math.exp(scale * float((w[j] - w[own]) @ x)) for j in range(len(w))]
    return math.log(sum(exponents))


@given(proxies(), SCALES)
@settings(max_examples=30, deadline=None)
def test_minimizers_satisfy_proposition_3(w: Tensor, scale: float) -> None:
    x = class_minimizers(w, scale=scale)
    assert torch.allclose(x.norm(dim=1), torch.ones(len(w), dtype=torch.float64), atol=1e-12)
    for own in range(len(w)):
        # The own term is 0, and a common factor of the others cancels in the quotient.
        weights = (scale * w @ x[own]).index_fill(0, torch.tensor([own]), -math.inf).softmax(0)
        towards = ((w[own] - w) * weights.unsqueeze(1)).sum(0)
        share = 1 / ((w[own] @ x[own] - w @ x[own]) * weights).sum()
        assert torch.allclose(share * towards, x[own], atol=1e-7)


@given(proxies(12), SCALES)
@settings(max_examples=20, deadline=None)
def test_no_place_on_the_sphere_has_less_loss(w: Tensor, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = class_minimizers(w, scale=scale)
    for own in range(len(w)):
        least = naive_loss(w, own, x[own], scale)
        near = unit(x[own] + 0.05 * torch.randn(20, w.shape[1], generator=generator, dtype=torch.float64))
        far = unit(torch.randn(20, w.shape[1], generator=generator, dtype=torch.float64))
        assert all(naive_loss(w, own, place, scale) >= least - 1e-12 for place in torch.cat((near, far)))


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_minimizers_are_found_to_eight_digits(scale: float) -> None:
    angles = torch.tensor([0.0, 0.4, 2.0, -1.1, -2.9], dtype=torch.float64)
    w = torch.stack((angles.cos(), angles.sin()), 1)
    for own, x in enumerate(class_minimizers(w, scale=scale)):

        def pull(angle: float, own: int = own) -> float:
            """The derivative of the negatives' log-sum-exp along the circle."""
            place = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
            along = torch.tensor([-math.sin(angle), math.cos(angle)], dtype=torch.float64)
            others = [j for j in range(len(w)) if j != own]
            weights = (scale * (w[others] @ place)).softmax(0)
            return float((weights @ w[others] - w[own]) @ along)

        angle = math.atan2(x[1], x[0])
        assert angle == pytest.approx(brentq(pull, angle - 0.05, angle + 0.05, xtol=1e-14), abs=1e-8)


def test_the_example_of_three_proxies() -> None:
    angles = torch.tensor([0.0, 0.1, -math.pi / 2], dtype=torch.float64)
    w = torch.stack((angles.cos(), angles.sin()), 1)
    x = class_minimizers(w)[0]
    places = torch.linspace(-math.pi, math.pi, 200_001, dtype=torch.float64)
    # As the paper prints it, but for its slip in the second exponent.
    losses = (1 + ((places - 0.1).cos() - places.cos()).exp() + (-places.sin() - places.cos()).exp()).log()
    assert math.atan2(x[1], x[0]) == pytest.approx(places[losses.argmin()].item(), abs=1e-4)
    assert math.atan2(x[1], x[0]) == pytest.approx(0.5244, abs=5e-5)
    assert (x - w[1]).norm() < (x - w[0]).norm()


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    whole, bounds = class_minimizers(w, scale=20.0), gap_bounds(w)
    monkeypatch.setattr("proxemic.analysis.gap._BYTES", 8 * 50 * 7)
    assert torch.allclose(class_minimizers(w, scale=20.0), whole, atol=1e-8)
    assert gap_bounds(w).lower == pytest.approx(bounds.lower, rel=1e-12)


def test_lengths_of_proxies_do_not_count() -> None:
    w = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    longer = w * torch.linspace(0.1, 9.0, 7, dtype=torch.float64).unsqueeze(1)
    assert torch.allclose(squared_gaps(w), squared_gaps(longer))
    assert gap_bounds(w).upper == pytest.approx(gap_bounds(longer).upper)


def test_proxies_that_coincide() -> None:
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert squared_gaps(same).tolist() == [0.0, 0.0]  # every place is as good
    x = class_minimizers(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert torch.allclose(x[0], x[1])
    assert math.atan2(x[0, 1], x[0, 0]) == pytest.approx(-math.pi / 4)  # straight away from the third


@pytest.mark.parametrize(("apart", "scale"), [(1e-6, 64.0), (1e-8, 1.0), (1e-11, 1000.0)])
def test_proxies_that_nearly_coincide(apart: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    w = unit(torch.randn(12, 8, generator=generator, dtype=torch.float64))
    w[1] = unit(w[0] + apart * torch.randn(8, generator=generator, dtype=torch.float64))
    x = class_minimizers(w, scale=scale)
    places = unit(torch.randn(200, 8, generator=generator, dtype=torch.float64))
    for own in (0, 1, 2):
        logits = scale * torch.cat((x[own : own + 1], places)) @ w.T
        losses = (logits.logsumexp(1) - logits[:, own]).tolist()
        assert losses[0] <= min(losses[1:]) + 1e-9


def lambert(z: float) -> float:
    """W of ``W e^W = z``, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.exp(middle) < z else (low, middle)
    return low


def naive_bounds(w: Tensor) -> dict[str, float]:
    classes = len(w)
    total, mean = torch.zeros(w.shape[1], dtype=torch.float64), w.mean(0)
    for one in w:
        for other in w:
            total += (one + other) / 8 * (1 - one @ other) * math.exp(one @ other - 1)
    roots = [math.sqrt(max(0.0, 1 - float(mean @ each))) for each in w]
    return {
        "lower": float(total @ total) / classes**5,
        "lower_sharp": float(total @ total) / classes**4,
        "lower_printed": float(total @ total) / classes**3,
        "upper": 2 - (2 / math.sqrt(math.e)) * sum(roots) / classes,
        "upper_printed": 2 - math.sqrt(2 / math.e) * sum(roots) / classes,
        "upper_always": 2 - 2 * sum(lambert(root**2) for root in roots) / classes,
        "mean_proxy_norm": float(mean.norm()),
    }


@given(proxies(12))
@settings(max_examples=30, deadline=None)
def test_the_bounds_are_those_of_the_formulas(w: Tensor) -> None:
    assert vars(gap_bounds(w)) == pytest.approx(naive_bounds(w), rel=1e-9, abs=1e-15)


@given(proxies())
@settings(max_examples=40, deadline=None)
def test_the_proved_bounds_always_hold(w: Tensor) -> None:
    x, bounds = class_minimizers(w), gap_bounds(w)
    gaps = (x - w).square().sum(1)
    assert bounds.lower <= bounds.lower_sharp <= gaps.mean() + 1e-12
    assert gaps.mean() <= bounds.upper_always + 1e-12
    assert bounds.upper <= bounds.upper_printed
    if (x @ w.mean(0) >= 0).all():
        assert gaps.mean() <= bounds.upper + 1e-12


@given(proxies())
@settings(max_examples=40, deadline=None)
def test_the_step_that_the_sharpened_bound_rests_on(w: Tensor) -> None:
    """S/C² bounds the mean gap, and so its square the mean squared one."""
    gaps = (class_minimizers(w) - w).norm(dim=1)
    assert math.sqrt(gap_bounds(w).lower_sharp) <= gaps.mean() + 1e-12


def test_the_printed_lower_bound_fails() -> None:
    generator = torch.Generator().manual_seed(0)
    w = unit(torch.eye(1, 16, dtype=torch.float64) + 0.3 * torch.randn(3000, 16, generator=generator).double())
    bounds = gap_bounds(w)
    assert bounds.lower_printed > 4  # no squared distance of unit vectors is
    assert bounds.lower_sharp < bounds.upper
    spread = torch.randn(200, 32, generator=generator, dtype=torch.float64)
    assert gap_bounds(spread).lower_printed > squared_gaps(spread).mean() > gap_bounds(spread).lower_sharp


def tightness(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class: what the two upper bounds leave, 1 for nothing, and ‖w′ − w̄‖ of Theorem 2's proof.

    With a = w_c·x_c and m = w̄·w_c they say a ≥ √((1 − m)/e), where w̄·x_c ≥ 0 (else ∞ stands here), and a eᵃ ≥ 1 − m.
    """
    x, mean = class_minimizers(w), w.mean(0)
    a, apart = (x * w).sum(1), 1 - w @ mean
    weights = 1 - w @ w.T
    far = (weights @ w / weights.sum(1, keepdim=True) - mean).norm(dim=1)
    first = torch.where(x @ mean >= 0, a * (math.e / apart).sqrt(), math.inf)
    return first, a * a.exp() / apart, far


def test_theorem_2_at_its_worst() -> None:
    """The last line of its proof, 2/√e, holds beyond the ‖w′ − w̄‖ ≤ 1 that it takes for granted."""
    generator = torch.Generator().manual_seed(0)
    found = [tightness(unit(torch.randn(3, 2, generator=generator, dtype=torch.float64))) for _ in range(40)]
    # Crowds near the own proxy, others across: ‖w′ − w̄‖ towards 2, where the printed constant does not follow from it.
    for others in (1, 3):
        for angle in (2.0, 2.6, math.pi):
            turns = torch.cat((1e-3 * torch.arange(20.0), torch.full((others,), angle) + 0.1 * torch.arange(others)))
            found.append(tightness(torch.stack((turns.cos(), turns.sin()), 1).double()))
    # From four proxies that an earlier search ended at, downhill.
    w = unit(
        torch.tensor([[0.01, 0.13, 0.99], [0.08, -0.28, 0.96], [0.25, -0.74, -0.62], [0.14, -0.22, 0.97]]).double()
    )
    best = math.inf
    for _ in range(40):
        other = unit(w + 0.01 * torch.randn(4, 3, generator=generator, dtype=torch.float64))
        found.append(tightness(other))
        if float(found[-1][0].min()) < best:
            best, w = float(found[-1][0].min()), other
    first, second, far = (torch.cat(each) for each in zip(*found, strict=True))
    assert 1 <= first.min() < 1.4
    assert 1 <= second.min() < 3
    assert far[first < math.inf].max() > 1 + math.log(2)


# Propositions 1 and 2: proxy losses dominate pair losses.

GROWING: dict[str, tuple[Callable[[float], float], float]] = {
    "identity": (lambda t: t, 1.0),
    "square": (lambda t: t**2, 4.0),
    "exponential": (math.exp, math.exp(2)),
    "logarithm": (math.log1p, 1.0),
}
"""Functions that do not fall, and the largest slope of each on [0, 2]."""


@st.composite
def classes_near_proxies(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    """Proxies, an embedding of each class and a second one of the first class, and the largest distance to a proxy."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    classes, dim = draw(st.integers(2, 8)), draw(st.integers(2, 6))
    noise = draw(st.sampled_from([0.01, 0.1, 0.5, 2.0]))
    w = unit(torch.randn(classes, dim, generator=generator, dtype=torch.float64))
    own = torch.cat((torch.arange(classes), torch.tensor([0])))
    x = unit(w[own] + noise * torch.randn(len(own), dim, generator=generator, dtype=torch.float64))
    return w, x[:-1], x[-1], float((x - w[own]).norm(dim=1).max()) + 1e-12


@pytest.mark.parametrize("name", GROWING)
@given(case=classes_near_proxies())
@settings(max_examples=40, deadline=None)
def test_proposition_1(name: str, case: tuple[Tensor, Tensor, Tensor, float]) -> None:
    (w, x, second, epsilon), (g, slope) = case, GROWING[name]

    def distance(one: Tensor, other: Tensor) -> float:
        return float((one - other).norm())

    for other in range(1, len(w)):
        triplet = g(distance(x[0], second)) - g(distance(x[0], x[other]))
        proxy = g(distance(x[0], w[0])) - g(distance(x[0], w[other]))
        assert triplet <= proxy + 2 * epsilon * slope + 1e-12


@given(case=classes_near_proxies())
@settings(max_examples=60, deadline=None)
def test_proposition_2(case: tuple[Tensor, Tensor, Tensor, float]) -> None:
    w, x, second, epsilon = case
    pairs = -float(x[0] @ second) + math.log(sum(math.exp(float(x[0] @ other)) for other in x[1:]))
    # Minus half the squared distance of unit vectors is their cosine, less 1 in numerator and denominator.
    loss = ProxyNCALoss(len(w), w.shape[1], scale=0.5, init=lambda proxies: proxies.copy_(w.unsqueeze(1))).double()
    with torch.no_grad():
        loss.proxies.copy_(w.unsqueeze(1))
    assert pairs <= loss(x[:1], torch.tensor([0])).item() + 2 * epsilon + 1e-9


def test_which_losses_fit() -> None:
    proxies, scale = softmax_form(NormalizedSoftmaxLoss(5, 3, scale=7.0))
    assert (proxies.shape, scale) == ((5, 3), 7.0)
    from pytorch_metric_learning.losses import ContrastiveLoss

    for loss, words in (
        (ArcFaceLoss(5, 3), "ArcFaceLoss"),
        (NormalizedSoftmaxLoss(5, 3, proxies_per_class=2), "2 proxies per class"),
        (PairwiseLoss(5, 3, loss=ContrastiveLoss()), "PairwiseLoss"),
    ):
        with pytest.raises(ValueError, match=rf"{words}.*NormalizedSoftmaxLoss .*or ProxyNCAPlusPlusLoss"):
            softmax_form(loss)


def test_proxy_nca_plus_plus_is_the_softmax_of_its_scale() -> None:
    loss = ProxyNCAPlusPlusLoss(6, 3, temperature=0.25).double()
    proxies, scale = softmax_form(loss)
    x = class_minimizers(proxies, scale=scale)
    for own in range(6):
        there = loss(x[own : own + 1], torch.tensor([own])).item()
        assert there == pytest.approx(naive_loss(unit(proxies), own, x[own], scale), rel=1e-9)


def test_directions_of_classes() -> None:
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 5.0]], dtype=torch.float64)
    found = class_directions(x, torch.tensor([1, 1, 0, 0]))
    both = torch.tensor([0.6 + 1.0, 0.8], dtype=torch.float64)
    assert torch.allclose(found, torch.stack((torch.tensor([0.0, 1.0]).double(), both / both.norm())))


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        (torch.eye(2)[:1], {}, r"shape \[1, 2\]"),
        (torch.ones(2, 2, 2), {}, r"shape \[2, 2, 2\]"),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), {}, "1 of 2 rows"),
        (torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), {}, "1 of 2 rows"),
        (torch.eye(2), {"scale": 0.0}, "scale is 0"),
        (torch.eye(2), {"tolerance": -1.0}, "tolerance is -1"),
    ],
)
def test_refused(rows: Tensor, more: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        class_minimizers(rows, **more)


def test_what_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxemic.analysis.gap._STEPS", 2)
    with pytest.raises(ValueError, match="4 of 4 classes"):
        class_minimizers(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
