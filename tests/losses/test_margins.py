"""Margins per class against oracles."""

import copy
from collections.abc import Callable
from typing import Any

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


def _softmax(positive: Callable[[Tensor, float], Tensor], score: Any = oracles.class_score) -> Callable[..., Tensor]:
    def oracle(x: Tensor, w: Tensor, y: list[int], margin: list[float]) -> Tensor:
        return oracles.margin_softmax(x, w, y, 64.0, lambda theta, _, own: positive(theta, margin[own]), score)

    return oracle


CASES: dict[str, tuple[Callable[..., ProxyLoss], Callable[..., Tensor], dict[str, object]]] = {
    "cos-face": (CosFaceLoss, _softmax(lambda theta, margin: theta.cos() - margin), {}),
    "arc-face": (ArcFaceLoss, _softmax(oracles.arc), {}),
    "sub-center": (ArcFaceLoss, _softmax(oracles.arc, oracles.nearest_score), {"pooling": MaxPooling()}),
    "soft-triple": (SoftTripleLoss, oracles.soft_triple, {}),
    "proxy-anchor": (ProxyAnchorLoss, oracles.proxy_anchor, {}),
    "mpa": (MultiProxyAnchorLoss, oracles.multi_proxy_anchor, {}),
    "mpa-dw": (DataWiseMultiProxyAnchorLoss, oracles.data_wise, {}),
    "mpa-ap": (AllPairMultiProxyAnchorLoss, oracles.all_pair, {}),
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
    expected = CASES[case][1](x, loss.proxies, LABELS, margin=MARGINS)
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
        ("cos-face", [0.1, 0.2, 2.5, 0.1, 0.1], "margin of class 2 is 2.5, but is subtracted from a cosine"),
        ("arc-face", [0.1, 30.0, 0.1, 0.1, 0.1], r"margin of class 1 is 30.0, but is an angle in radians"),
        ("arc-face", [0.1, 0.1, 0.1, 0.1, -0.5], "margin of class 4 is -0.5"),
        ("mpa", torch.tensor([0.1, torch.nan, 0.1, 0.1, 0.1]), "margin of class 1 is nan, but must be a finite number"),
        ("soft-triple", "large", "margin is a str but must be a tensor"),
        ("arc-face", Steep(), "margin of class 0 is 9.0, but is an angle in radians"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_margins_that_cannot_be_are_refused(case: str, margin: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        make(case, margin).count_classes([1, 9, 9, 9, 9])
    assert "\n" not in str(error.value)


def test_a_dynamic_margin_checks_its_numbers() -> None:
    for keywords, words in (
        ({"a": -1.0}, "a is -1.0"),
        ({"b": torch.inf}, "b is inf"),
        ({"power": 0.0}, "power is 0.0"),
    ):
        with pytest.raises(ValueError, match=words):
            DynamicMargin(**keywords)
    with pytest.raises(ValueError, match="counts hold 0 for class 1"):
        DynamicMargin()([3, 0])
