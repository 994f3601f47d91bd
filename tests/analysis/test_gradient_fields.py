"""The field against differences of the loss, where it must vanish, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pairs
from torch import Tensor

from proxemic.analysis import every_proxy_loss, gradient_field, loss_values, plot_gradient_field
from proxemic.losses import (
    AdaFaceLoss,
    EuclideanSoftmaxLoss,
    HISTLoss,
    NormalizedSoftmaxLoss,
    PairwiseLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    WarpedSoftmaxLoss,
)

REST = (torch.tensor([[0.6, 0.8], [-1.0, 0.2]], dtype=torch.float64), torch.tensor([0, 1]))


def directions(*degrees: float) -> Tensor:
    turn = torch.tensor(degrees, dtype=torch.float64) * (math.pi / 180)
    return torch.stack((turn.cos(), turn.sin()), 1)


def at(places: Tensor) -> Callable[[Tensor], object]:
    return lambda proxies: proxies.copy_(places.unsqueeze(1))


def two_dimensional() -> list[ProxyLoss | PairwiseLoss]:
    init = at(2 * directions(90, 150, 250, 345))
    found: list[ProxyLoss | PairwiseLoss] = []
    for loss in every_proxy_loss().values():
        warp: Any = {"alpha": 2.0, "k1": 0.6, "k2": 1.5} if isinstance(loss, WarpedSoftmaxLoss) else {}
        found.append(type(loss)(4, 2, init=init, **warp))
    return [*found, PairwiseLoss(4, 2, loss=pairs.MultiSimilarityLoss())]


@pytest.mark.parametrize("rest", [None, REST], ids=["alone", "in a batch"])
@pytest.mark.parametrize("loss", two_dimensional(), ids=lambda loss: type(loss).__name__)
def test_the_field_is_the_slope_of_the_loss(loss: ProxyLoss | PairwiseLoss, rest: tuple[Tensor, Tensor] | None) -> None:
    loss = loss.double()
    points = torch.tensor([[0.9, 0.7], [-0.4, 1.3], [0.3, -1.1]], dtype=torch.float64)
    step = 1e-6 * torch.eye(2, dtype=torch.float64)

    def slope(axis: int) -> Tensor:
        ahead, behind = (loss_values(loss, points + sign * step[axis], 0, rest=rest) for sign in (1, -1))
        return (behind - ahead) / 2e-6

    if isinstance(loss, AdaFaceLoss):  # its quality gets no gradient: clipped to −1 it has no slope either
        loss.norm_std.fill_(0.1)
    expected = torch.stack((slope(0), slope(1)), 1)
    if isinstance(loss, WarpedSoftmaxLoss):  # Δ has a value and no gradient: below α the slope is not the force
        outside = (points - loss.proxies[0, 0]).norm(dim=1) > 2
        assert outside.any()
        expected, points = expected[outside], points[outside]
    torch.testing.assert_close(gradient_field(loss, points, 0, rest=rest), expected, rtol=1e-5, atol=1e-6)


def test_a_softmax_rests_at_its_proxy_among_symmetric_others_only() -> None:
    symmetric = NormalizedSoftmaxLoss(3, 2, scale=1.0, init=at(directions(90, 210, 330)))
    torch.testing.assert_close(
        gradient_field(symmetric, directions(90), 0), torch.zeros(1, 2, dtype=torch.float64), rtol=0, atol=1e-7
    )
    turn = torch.arange(0.0, 360.0, 5.0)
    assert loss_values(symmetric, directions(*turn.tolist()), 0).argmin() == 18
    # The mean-proxy paper's example: the minimum is nearer to the second proxy, at 0.1, than to the own one.
    crowded = NormalizedSoftmaxLoss(3, 2, scale=1.0, init=at(directions(0, math.degrees(0.1), -90)))
    fine = torch.arange(0.5, 0.55, 0.0004)
    values = loss_values(crowded, torch.stack((fine.cos(), fine.sin()), 1), 0)
    assert fine[values.argmin()].item() == pytest.approx(0.5244, abs=1e-3)


def test_a_warp_turns_the_force_at_alpha() -> None:
    loss = WarpedSoftmaxLoss(2, 2, alpha=1.5, k1=0.5, k2=2.0, init=at(torch.tensor([[0.0, 0.0], [-3.0, 0.0]])))
    force = gradient_field(loss, torch.tensor([[1.4, 0.0], [1.6, 0.0]]), 0)
    assert force[0, 0] > 0 > force[1, 0]
    plain = EuclideanSoftmaxLoss(2, 2, init=at(torch.tensor([[0.0, 0.0], [-3.0, 0.0]])))
    assert gradient_field(plain, torch.tensor([[1.4, 0.0]]), 0).abs().max() < 1e-6  # pull and push cancel


def test_the_rest_of_the_batch_counts_where_samples_share_a_proxy() -> None:
    loss = ProxyAnchorLoss(3, 2, alpha=4.0, init=at(directions(90, 210, 330)))
    points = directions(300)
    alone = gradient_field(loss, points, 0)
    harder = gradient_field(loss, points, 0, rest=(directions(270), torch.tensor([0])))
    assert harder.norm() < 0.9 * alone.norm()


def test_the_loss_is_left_as_it_is() -> None:
    loss = HISTLoss(4, 2)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    with torch.no_grad():
        assert gradient_field(loss, torch.ones(3, 2), 1).abs().sum() > 0
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
    assert all(value.grad is None for value in loss.parameters())


def test_plots() -> None:
    loss = ProxyAnchorLoss(4, 2)
    circle = plot_gradient_field(loss, 2, radius=3.0)
    assert [text.get_text() for text in circle.texts] == ["0", "1", "2", "3"]
    assert circle.get_xlabel().endswith("per radian")
    # Nothing of a loss of cosines depends on the length of the embedding.
    assert circle.get_xlabel() == plot_gradient_field(loss, 2).get_xlabel()
    plane = plot_gradient_field(EuclideanSoftmaxLoss(4, 2), half_width=2.0, rest=REST)
    assert plane.get_xlim() == (-2, 2)
    assert len(plane.texts) == 6
    flat = PairwiseLoss(2, 2, loss=pairs.ContrastiveLoss())
    assert plot_gradient_field(flat).get_xlabel() == "largest force 0 per radian"


def test_what_is_refused() -> None:
    loss = NormalizedSoftmaxLoss(3, 2)
    refused = {
        r"\[batch, 2\]": lambda: gradient_field(loss, torch.ones(4, 3), 0),
        "labels hold 3, but num_classes=3": lambda: gradient_field(loss, torch.ones(4, 2), 3),
        "embedding_size 5, but a plot is flat": lambda: plot_gradient_field(NormalizedSoftmaxLoss(3, 5)),
        "radius is 0": lambda: plot_gradient_field(loss, radius=0.0),
        "memory_size is 8": lambda: gradient_field(
            PairwiseLoss(2, 2, loss=pairs.ContrastiveLoss(), memory_size=8), torch.ones(1, 2), 0
        ),
    }
    for words, call in refused.items():
        with pytest.raises(ValueError, match=words):
            call()
