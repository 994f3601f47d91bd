"""The forces of a loss: taken apart for two classes, and their alignment over a training."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.analysis import WarpPotential, plot_forces, two_class_forces
from proxemic.analysis.forces import descend, draw_forces, plot_force_alignment, training_forces
from proxemic.analysis.toy import Scene
from proxemic.losses import EuclideanSoftmaxLoss, ProxyLoss, WarpedSoftmaxLoss
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
    # On each proxy: the mean pull of its class, by the slopes 0.65 and 1.5, and the mean push of the other.
    own, other = ((embeddings - proxy) / (embeddings - proxy).norm(dim=1, keepdim=True) for proxy in proxies)
    first = (0.65 * own[0] + 1.5 * own[1]) / 2 - own[2]
    second = 0.65 * other[2] - (other[0] + other[1]) / 2
    arrows = axes.collections[-1]
    torch.testing.assert_close(torch.tensor(arrows.U), torch.stack((first, second))[:, 0])
    torch.testing.assert_close(torch.tensor(arrows.V), torch.stack((first, second))[:, 1])
    written = [
        write_figure(draw_forces(embeddings, labels, proxies, WARP), tmp_path / name, [], []) for name in ("a", "b")
    ]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]


def two_classes(seed: int = 0) -> Scene:
    generator = torch.Generator().manual_seed(seed)
    proxies, labels = 2 * torch.randn(2, 1, 3, generator=generator), torch.arange(2).repeat(10)
    return Scene(2 * torch.randn(20, 3, generator=generator), labels, proxies)


def warped() -> ProxyLoss:
    return WarpedSoftmaxLoss(2, 3, alpha=3.0, k1=0.65, k2=1.5)


def test_the_forces_are_f1_to_f4_of_two_classes() -> None:
    scene = two_classes()
    found = training_forces(warped(), scene)
    assert scene.proxies is not None
    on_proxies = torch.zeros(2, 3)
    for label in (0, 1):
        mine = scene.labels == label
        own, other = scene.proxies[label, 0], scene.proxies[1 - label, 0]
        four = two_class_forces(scene.embeddings[mine], own, other, lambda t: warp(t, alpha=3.0, k1=0.65, k2=1.5))
        torch.testing.assert_close(found.on_embeddings[mine], four.coupled)
        on_proxies[label] += four.proxy_pull.sum(0)
        on_proxies[1 - label] += four.proxy_push.sum(0)
    torch.testing.assert_close(found.on_proxies, on_proxies)
    expected = [
        float(on @ on_proxies[label] / on.norm() / on_proxies[label].norm())
        for on, label in zip(found.on_embeddings, scene.labels.tolist(), strict=True)
    ]
    assert found.alignment.tolist() == pytest.approx(expected, abs=1e-5)
    assert found.mean_alignment == pytest.approx(sum(expected) / 20, abs=1e-5)


@pytest.mark.parametrize("loss", [EuclideanSoftmaxLoss(2, 3), warped()])
def test_forces_align_as_figure_4_says(loss: ProxyLoss) -> None:
    film = descend(loss, two_classes(), steps=100, rate=0.1)
    first, last = (training_forces(loss, film[step]).mean_alignment for step in (0, 100))
    assert first < 0 < 0.5 < last


def test_no_force_has_no_direction_and_what_is_refused() -> None:
    scene = two_classes()
    on_its_proxy = Scene(torch.zeros(1, 3), torch.tensor([0]), torch.zeros(2, 1, 3))
    assert training_forces(EuclideanSoftmaxLoss(2, 3), on_its_proxy).alignment.isnan().all()
    for proxies, words in ((None, "no proxies"), (torch.zeros(2, 4, 3), "4 proxies per class")):
        with pytest.raises(ValueError, match=words):
            training_forces(warped(), Scene(scene.embeddings, scene.labels, proxies))


def test_more_than_three_dimensions_are_drawn_on_the_principal_components() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, proxies = torch.arange(2).repeat(5), torch.randn(2, 1, 5, generator=generator)
    plane = torch.randn(10, 2, generator=generator) @ torch.randn(2, 5, generator=generator)
    film = descend(EuclideanSoftmaxLoss(2, 5), Scene(plane - plane.mean(0), labels, proxies), steps=3, rate=0.1)
    forces = {step: (scene, training_forces(EuclideanSoftmaxLoss(2, 5), scene)) for step, scene in film.items()}
    figure = plot_force_alignment({"five": forces, "begun": {0: forces[0]}}, unit="step")
    assert [axes.get_title().partition(":")[0] for axes in figure.axes] == [
        "five\nstep 0", "step 2", "step 3", "", "begun\nstep 0", "",
    ]  # fmt: skip
    offsets = figure.axes[4].collections[0]._offsets3d
    dots = torch.stack([torch.tensor(offset) for offset in offsets], 1)
    flat = film[0].embeddings
    torch.testing.assert_close(torch.cdist(dots, dots), torch.cdist(flat, flat).to(dots), atol=1e-5, rtol=1e-5)
