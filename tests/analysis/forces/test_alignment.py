"""Forces over a training against the four forces of two classes, and the pairs of six losses."""

import pytest
import torch

from proxemic.analysis import two_class_forces
from proxemic.analysis.forces.alignment import descend, plot_force_alignment, training_forces
from proxemic.analysis.toy.scenes import Scene
from proxemic.losses import EuclideanSoftmaxLoss, ProxyLoss, WarpedSoftmaxLoss
from proxemic.losses.warped_softmax import warp


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
