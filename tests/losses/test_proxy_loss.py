"""A softmax loss is the cross-entropy of its logits, also with label smoothing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from losses.test_losses import CASES, make
from proxemic.losses import DynamicMargin, ElasticFaceLoss, ProxyLoss

OTHERS = ["proxy-nca", "proxy-anchor", "mpa", "mpa-dw", "mpa-ap", "hist"]
SOFTMAX = [name for name in CASES if name not in OTHERS]
WITHOUT_TERMS = {
    "soft-triple": {"center_weight": 0.0},
    "mag-face": {"norm_weight": 0.0},
    "mean-proxy": {"regularizers": ()},
}


def batch() -> tuple[Tensor, Tensor]:
    """Make embeddings and labels."""
    return 3 * torch.linspace(-1, 1, 6 * 7).view(6, 7).mul(40).sin(), torch.tensor([0, 0, 1, 3, 4, 3])


def without_terms(case: str, **keywords: Any) -> ProxyLoss:
    """Make a loss without the terms that are added to the cross-entropy."""
    torch.manual_seed(1)
    more = CASES[case].keywords | WITHOUT_TERMS.get(case, {}) | keywords
    loss = CASES[case].loss(5, 7, proxies_per_class=2, init=torch.nn.init.normal_, **more)
    loss.load_state_dict({name: torch.tensor(value) for name, value in CASES[case].state.items()}, strict=False)
    return loss.eval()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("case", SOFTMAX)
def test_a_softmax_loss_is_the_cross_entropy_of_its_logits(case: str, smoothing: float) -> None:
    x, y = batch()
    x = (CASES[case].length * x).requires_grad_()
    for chunk in (1, 2, 5, None):
        loss = without_terms(case, chunk_size=chunk, label_smoothing=smoothing)
        value = loss(x, y)
        expected = cross_entropy(loss.class_logits(x, y.int()), y, label_smoothing=smoothing)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        got, want = (torch.autograd.grad(item, (x, loss.proxies)) for item in (value, expected))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_margins_that_were_drawn_are_those_of_the_smoothed_target() -> None:
    torch.manual_seed(0)
    x, y = batch()
    loss = ElasticFaceLoss(5, 7, deviation=0.3, scale=8.0, label_smoothing=0.2)
    value = loss(x, y)
    assert loss(x, y) != value
    torch.manual_seed(3)
    value = loss(x, y)
    torch.manual_seed(3)
    margins = (0.5 + 0.3 * torch.randn(6)).clamp(0, torch.pi / 2)
    logits = loss.class_logits(x, y)  # with margins of 0.5, and without drawing any
    theta = loss.class_scores(x).gather(1, y[:, None])[:, 0].arccos()
    logits[range(6), y] = torch.where(
        theta + margins <= torch.pi, 8 * (theta + margins).cos(), 8 * (theta.cos() - margins * margins.sin())
    )
    torch.testing.assert_close(value, cross_entropy(logits, y, label_smoothing=0.2))


@pytest.mark.parametrize("case", ["ada-face", "curricular-face", "elastic-face"])
def test_logits_move_no_average_and_draw_no_margin(case: str) -> None:
    loss, (x, y) = make(case).train(), batch()
    before, generator = copy.deepcopy(loss.state_dict()), torch.get_rng_state()
    logits = loss.class_logits(x, y)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(buffer, before[name]) for name, buffer in loss.state_dict().items())
    assert loss.training
    assert torch.equal(logits, loss.eval().class_logits(x, y))


@pytest.mark.parametrize("case", CASES)
def test_logits_without_labels_are_scaled_scores(case: str) -> None:
    loss = make(case)
    if "warped-functions" in case:  # scaled after their own function
        return
    x, _ = batch()
    torch.testing.assert_close(loss.class_logits(x), loss.scoring.scale * loss.class_scores(x))
    torch.testing.assert_close(loss.class_logits(x.half()), loss.class_logits(x.half().float()))


@pytest.mark.cpu
@pytest.mark.parametrize("case", ["softmax", "cos-face", "arc-face", "sub-center"])
def test_logits_are_those_of_the_other_library(case: str) -> None:
    from losses.test_conversion import LOSSES
    from proxemic.losses import from_pytorch_metric_learning

    theirs: Any = LOSSES[case]()
    ours = from_pytorch_metric_learning(theirs)
    x = torch.randn(4, 16)
    torch.testing.assert_close(ours.class_logits(x), theirs.get_logits(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", OTHERS)
def test_other_losses_have_neither_margins_on_logits_nor_smoothed_labels(case: str) -> None:
    name = type(make(case)).__name__
    x, y = batch()
    with pytest.raises(ValueError, match=f"{name} is not a cross-entropy .* leave the labels out"):
        make(case).class_logits(x, y)
    with pytest.raises(ValueError, match=f"label_smoothing is 0.1, but {name} is not a cross-entropy"):
        make(case, label_smoothing=0.1)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="label_smoothing is 1"):
        make("softmax", label_smoothing=1)
    x, y = batch()
    with pytest.raises(ValueError, match=r"call loss\.count_classes"):
        make("arc-face", margin=DynamicMargin()).class_logits(x, y)
    with pytest.raises(ValueError, match="labels hold 5"):
        make("softmax").class_logits(x, y + 1)
