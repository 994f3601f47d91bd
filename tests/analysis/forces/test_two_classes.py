"""The four forces against their formula and against the losses that train."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.analysis import WarpPotential, plot_forces, two_class_forces
from proxemic.analysis.forces import draw_forces
from proxemic.losses import WarpedSoftmaxLoss
from proxemic.losses.warped_softmax import warp
from proxemic.plots import write_figure

PLACES = st.tuples(st.floats(-6, 6), st.floats(-6, 6))
OWN, OTHER = torch.tensor([0.0, 0.0], dtype=torch.float64), torch.tensor([4.0, 0.0], dtype=torch.float64)
WARP = WarpPotential(3.0, 0.65, 1.5)


def trained(delta_scale: float) -> Callable[[Tensor], Tensor]:
    return lambda t: warp(t, alpha=3.0, k1=0.65, k2=1.5, delta_scale=delta_scale)


@settings(max_examples=50)
@given(place=PLACES, temperature=st.floats(0.2, 3.0), delta_scale=st.sampled_from([1.0, 3.0]))
def test_the_forces_are_the_formula_and_the_loss_s(
    place: tuple[float, float], temperature: float, delta_scale: float
) -> None:
    near, far = math.dist(place, (0, 0)), math.dist(place, (4, 0))
    if min(near, far, abs(near - 3)) < 1e-6:
        return
    slope = 0.65 if near < 3 else 1.5
    value = near + (delta_scale - 1) * 0.35 * near if near < 3 else 1.5 * near - 1.5
    weight = temperature / (1 + math.exp(temperature * (far - value)))
    e = torch.tensor([place], dtype=torch.float64)
    found = two_class_forces(e, OWN, OTHER, trained(delta_scale), temperature=temperature)
    torch.testing.assert_close(found.pull, weight * slope * (OWN - e) / near)
    torch.testing.assert_close(found.push, weight * (e - OTHER) / far)
    torch.testing.assert_close(found.proxy_pull, -found.pull)
    torch.testing.assert_close(found.proxy_push, -found.push)

    loss = WarpedSoftmaxLoss(2, 2, alpha=3.0, k1=0.65, k2=1.5, delta_scale=delta_scale, temperature=temperature)
    loss = loss.double()
    loss.proxies.data.copy_(torch.stack((OWN, OTHER)).unsqueeze(1))
    x = e.clone().requires_grad_()
    on_embedding, on_proxies = torch.autograd.grad(loss(x, torch.tensor([0])), (x, loss.proxies))
    torch.testing.assert_close(found.coupled, -on_embedding)
    torch.testing.assert_close(torch.stack((found.proxy_pull, found.proxy_push)), -on_proxies)


def test_beyond_the_own_proxy_a_warp_drives_to_alpha() -> None:
    line = torch.tensor([[-0.5, 0.0], [-2.9, 0.0], [-3.1, 0.0], [-8.0, 0.0]], dtype=torch.float64)
    warped = two_class_forces(line, OWN, OTHER, WARP).coupled[:, 0]
    assert torch.sign(warped).tolist() == [-1, -1, 1, 1]
    assert two_class_forces(line, OWN, OTHER).coupled.abs().max() < 1e-15  # without a warp the two cancel


def test_on_a_proxy_a_root_has_no_force() -> None:
    found = two_class_forces(torch.stack((OWN, OTHER)), OWN, OTHER, torch.sqrt, torch.sqrt)
    assert found.pull[0].tolist() == [0, 0]
    assert found.push[1].tolist() == [0, 0]
    assert found.push[0, 0] == pytest.approx(-0.25 / (1 + math.exp(2)))


def test_a_temperature_that_is_none() -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        two_class_forces(OWN.unsqueeze(0), OWN, OTHER, temperature=0.0)


def test_plots_show_the_forces(tmp_path: Path) -> None:
    proxies = torch.tensor([[0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    embeddings = torch.tensor([[-1.0, 0.5], [-4.0, 1.0], [5.0, -0.5]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    axes = plot_forces(embeddings, labels, proxies, WARP, title="warp")
    pull, push, coupled = axes.collections[:3]
    torch.testing.assert_close(torch.tensor(push.U**2 + push.V**2), torch.ones(2, dtype=torch.float64))
    lengths = torch.tensor((pull.U**2 + pull.V**2) ** 0.5)
    torch.testing.assert_close(lengths, torch.tensor([0.65, 1.5], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(coupled.U), torch.tensor(pull.U + push.U))
    written = [
        write_figure(draw_forces(embeddings, labels, proxies, WARP), tmp_path / name, [], []) for name in ("a", "b")
    ]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
