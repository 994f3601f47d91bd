"""Minimisers of the softmax loss and the theorems of the mean-proxy paper, against plain formulas in float64."""

import math

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
    roots = [math.sqrt(max(0.0, 1 - float(mean @ item))) for item in w]
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
    assert math.sqrt(bounds.lower_sharp) <= gaps.sqrt().mean() + 1e-12, "what the sharpened bound rests on"
    assert gaps.mean() <= bounds.upper_always + 1e-12
    assert bounds.upper <= bounds.upper_printed
    if (x @ w.mean(0) >= 0).all():
        assert gaps.mean() <= bounds.upper + 1e-12


def test_the_printed_lower_bound_fails() -> None:
    generator = torch.Generator().manual_seed(0)
    w = unit(torch.eye(1, 16, dtype=torch.float64) + 0.3 * torch.randn(3000, 16, generator=generator).double())
    bounds = gap_bounds(w)
    assert bounds.lower_printed > 4  # no squared distance of unit vectors is
    assert bounds.lower_sharp < bounds.upper
    spread = torch.randn(200, 32, generator=generator, dtype=torch.float64)
    assert gap_bounds(spread).lower_printed > squared_gaps(spread).mean() > gap_bounds(spread).lower_sharp


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
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), {}, "1 of 2"),
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
