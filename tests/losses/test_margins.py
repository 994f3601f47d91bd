"""Margins of classes, against oracles in which every class has its own."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from losses import oracles
from proxemic.losses import (
    AllPairMultiProxyAnchorLoss,
    ArcFaceLoss,
    CosFaceLoss,
    DataWiseMultiProxyAnchorLoss,
    DynamicMargin,
    MarginRule,
    MaxPooling,
    MultiProxyAnchorLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    SoftTripleLoss,
)
from proxemic.training.phases import share_parameters

MARGINS = [0.5, 0.0, 0.125, 0.25, 1.0]  # exact in float32
LABELS = [3, 0, 3, 1]
log1p_sum_exp = oracles.log1p_sum_exp


def _softmax(scale: float, positive: Callable[[Tensor, float], Tensor], nearest: bool = False) -> Callable[..., Tensor]:
    def oracle(x: Tensor, w: Tensor) -> Tensor:
        s = oracles.scores(x, w, oracles.nearest_score if nearest else oracles.class_score)
        terms = [
            log1p_sum_exp([scale * (s[i, c] - positive(s[i, y], MARGINS[y])) for c in range(len(w)) if c != y])
            for i, y in enumerate(LABELS)
        ]
        return torch.stack(terms).mean()

    return oracle


def _arc(score: Tensor, margin: float) -> Tensor:
    return oracles.arc(torch.arccos(score), margin)


def _less(score: Tensor, margin: float) -> Tensor:
    return score - margin


def _soft_triple(x: Tensor, w: Tensor) -> Tensor:
    return _softmax(20.0, _less)(x, w) + 0.2 * oracles.center_regularizer(w)


def _proxy_anchor(x: Tensor, w: Tensor) -> Tensor:
    s, total = oracles.scores(x, w), torch.tensor(0.0, dtype=x.dtype)
    for c in range(len(w)):
        if c in LABELS:
            pull = [-32 * (s[i, c] - MARGINS[c]) for i, y in enumerate(LABELS) if y == c]
            total = total + log1p_sum_exp(pull) / len(set(LABELS))
        push = [32 * (s[i, c] + MARGINS[c]) for i, y in enumerate(LABELS) if y != c]
        total = total + log1p_sum_exp(push) / len(w)
    return total


def _mpa(x: Tensor, w: Tensor) -> Tensor:
    return _proxy_anchor(x, w) + 0.2 * oracles.center_regularizer(w)


def _data_wise(x: Tensor, w: Tensor, together: bool = False) -> Tensor:
    s, total = oracles.scores(x, w), torch.tensor(0.0, dtype=x.dtype)
    for i, y in enumerate(LABELS):
        pull = [-32 * (s[i, y] - MARGINS[y])]
        push = [32 * (s[i, c] + MARGINS[c]) for c in range(len(w)) if c != y]
        total = total + (log1p_sum_exp(pull + push) if together else log1p_sum_exp(pull) + log1p_sum_exp(push))
    return total / len(LABELS) + 0.2 * oracles.center_regularizer(w)


def _all_pair(x: Tensor, w: Tensor) -> Tensor:
    return _data_wise(x, w, together=True)


CASES: dict[str, tuple[Callable[..., ProxyLoss], Callable[[Tensor, Tensor], Tensor], dict[str, object]]] = {
    "cos-face": (CosFaceLoss, _softmax(64.0, _less), {}),
    "arc-face": (ArcFaceLoss, _softmax(64.0, _arc), {}),
    "sub-center": (ArcFaceLoss, _softmax(64.0, _arc, nearest=True), {"pooling": MaxPooling()}),
    "soft-triple": (SoftTripleLoss, _soft_triple, {}),
    "proxy-anchor": (ProxyAnchorLoss, _proxy_anchor, {}),
    "mpa": (MultiProxyAnchorLoss, _mpa, {}),
    "mpa-dw": (DataWiseMultiProxyAnchorLoss, _data_wise, {}),
    "mpa-ap": (AllPairMultiProxyAnchorLoss, _all_pair, {}),
}
each_case = pytest.mark.parametrize("case", CASES)


def make(case: str, margin: object, classes: int = 5, **keywords: object) -> ProxyLoss:
    loss, _, more = CASES[case]
    return loss(classes, 7, margin=margin, proxies_per_class=2, **more, **keywords)


@each_case
def test_value_and_gradients_equal_the_oracle(case: str) -> None:
    torch.manual_seed(0)
    loss = make(case, MARGINS).double()
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    expected = CASES[case][1](x, loss.proxies)
    wanted = torch.autograd.grad(expected, (x, loss.proxies))
    for chunk in (1, 2, 5, None):
        loss.chunk_size = chunk
        value = loss(x, torch.tensor(LABELS))
        assert value.item() == pytest.approx(expected.item(), rel=1e-7)
        for got, want in zip(torch.autograd.grad(value, (x, loss.proxies)), wanted, strict=True):
            assert (got - want).norm() <= 1e-7 * want.norm()


@each_case
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_equal_margins_are_one_margin_and_a_class_carries_its_own(case: str, rate: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 7), torch.tensor([0, 3, 3, 11, 7, 7])

    def value(loss: ProxyLoss, labels: Tensor = y) -> Tensor:
        torch.manual_seed(1)  # the same classes are looked at
        return loss(x, labels)

    one, margins = make(case, 0.25, 12, sample_rate=rate), torch.full((12,), 0.25)
    several = make(case, margins, 12, sample_rate=rate, chunk_size=5)
    several.load_state_dict(one.state_dict(), strict=False)
    torch.testing.assert_close(value(several), value(one))
    margins[3] = 0.5
    assert several.margin[3] == 0.25  # type: ignore[index] # its own copy
    several.margin[3] = 0.5  # type: ignore[index]
    assert value(several) > value(one)
    if rate == 1:
        other, order = copy.deepcopy(several), torch.randperm(12)
        with torch.no_grad():
            other.proxies[order] = several.proxies
            other.margin[order] = several.margin  # type: ignore[index]
        torch.testing.assert_close(value(other, order[y]), value(several))


@each_case
def test_a_rule_waits_for_the_counts_and_is_loaded_with_them(case: str) -> None:
    counts = [1, 16, 81, 256, 10_000]
    loss = make(case, DynamicMargin())
    x, y = torch.randn(4, 7), torch.tensor(LABELS)
    with pytest.raises(ValueError, match=r"margin is DynamicMargin.* call loss\.count_classes") as error:
        loss(x, y)
    assert "\n" not in str(error.value)
    loss.count_classes(torch.tensor(counts))
    expected = torch.tensor([0.5 * n**-0.25 + 0.05 for n in counts])
    assert isinstance(loss.margin, Tensor)
    torch.testing.assert_close(loss.margin, expected)
    loaded = make(case, DynamicMargin(power=1.0))
    loaded.load_state_dict(loss.state_dict())
    assert torch.equal(loaded(x, y), loss(x, y))
    # A later phase has the weights, and the margins of its own.
    later = make(case, MARGINS)
    share_parameters(later, loss)
    assert later.proxies is loss.proxies
    assert later.margin.tolist() == MARGINS  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"counts have shape \[2\], but must be one for each of the 5"):
        loss.count_classes([1, 2])


class Steep(MarginRule):
    def __call__(self, counts: Tensor) -> Tensor:  # type: ignore[override]
        return 9.0 / counts


@pytest.mark.parametrize(
    ("case", "margin", "words"),
    [
        ("cos-face", [0.1] * 4, r"margin has shape \[4\], but must be one number, or one for each of the 5 classes"),
        ("cos-face", [0.1, 0.2, 2.5, 0.1, 0.1], "margin of class 2 is 2.5, but is taken from a cosine"),
        ("arc-face", [0.1, 30.0, 0.1, 0.1, 0.1], r"margin of class 1 is 30.0, but is an angle in radians"),
        ("arc-face", [0.1, 0.1, 0.1, 0.1, -0.5], "margin of class 4 is -0.5"),
        ("mpa", torch.tensor([0.1, torch.nan, 0.1, 0.1, 0.1]), "margin of class 1 is nan, but must be a finite number"),
        ("soft-triple", "large", "margin is 'large', but must be a number, or one per class"),
        ("arc-face", Steep(), "margin of class 0 is 9.0, but is an angle in radians"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_margins_that_cannot_be_are_refused(case: str, margin: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        make(case, margin).count_classes([1, 9, 9, 9, 9])
    assert "\n" not in str(error.value)


def test_a_dynamic_margin_is_of_numbers_that_it_can_be_of() -> None:
    for keywords, words in (
        ({"a": -1.0}, "a is -1.0"),
        ({"b": torch.inf}, "b is inf"),
        ({"power": 0.0}, "power is 0.0"),
    ):
        with pytest.raises(ValueError, match=words):
            DynamicMargin(**keywords)
    with pytest.raises(ValueError, match="counts hold 0 for class 1"):
        DynamicMargin()([3, 0])
