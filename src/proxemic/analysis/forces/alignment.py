"""How well the forces on embeddings align with those on their proxies over a training (warping paper, figure 4)."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from proxemic.analysis.drawing import class_colour, integer_ticks, new_figure
from proxemic.analysis.toy.scenes import Scene
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count, check_positive

ON_EMBEDDINGS, ON_PROXIES = "#aa3399", "black"
_ARROWS, _PANELS = 60, 3  # arrows per panel, panels per training


@dataclass(frozen=True, eq=False)
class TrainingForces:
    """Where a loss drives embeddings and proxies: minus its gradient.

    Args:
        on_embeddings: F1 + F3, of all classes.
        on_proxies: The sum of F4 over the embeddings of the class and of F2 over all others.
        alignment: The cosine, −1 to 1, of each embedding's force with that of its own proxy; NaN where one is 0.
    """

    on_embeddings: Float[Tensor, "images dim"]
    on_proxies: Float[Tensor, "classes dim"]
    alignment: Float[Tensor, " images"]

    @property
    def mean_alignment(self) -> float:
        """Mean over the embeddings whose alignment is defined."""
        return float(self.alignment.nanmean())


def training_forces(loss: ProxyLoss, scene: Scene) -> TrainingForces:
    """The forces of a loss on the embeddings and proxies of a scene; the loss's own proxies are not used.

    Raises:
        ValueError: If the scene has several proxies per class, or none.

    Source: Warping paper, section III-A and figure 4.

    >>> from proxemic.losses import EuclideanSoftmaxLoss
    >>> places = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    >>> scene = Scene(places, torch.tensor([0, 1]), torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]]))
    >>> training_forces(EuclideanSoftmaxLoss(2, 2), scene).alignment
    tensor([0.2425, 0.2425])
    """
    if scene.proxies is None or scene.proxies.shape[1] != 1:
        count = "no proxies" if scene.proxies is None else f"{scene.proxies.shape[1]} proxies per class"
        raise ValueError(f"there are {count}, but forces align with those on one proxy per class: give such a loss.")
    loss = copy.deepcopy(loss).eval()
    x, w = (tensor.detach().clone().requires_grad_() for tensor in (scene.embeddings, scene.proxies))
    with torch.enable_grad():
        value = functional_call(loss, {"proxies": w}, (x, scene.labels))
        on_embeddings, on_proxies = (-gradient for gradient in torch.autograd.grad(len(x) * value, (x, w)))
    on_proxies = on_proxies.squeeze(1)
    alignment = F.cosine_similarity(on_embeddings, on_proxies[scene.labels], dim=1, eps=0)  # 0/0 without a force
    return TrainingForces(on_embeddings, on_proxies, alignment)


def descend(loss: ProxyLoss, scene: Scene, steps: int, rate: float) -> dict[int, Scene]:
    """Let embeddings and proxies follow their forces: gradient descent without a network.

    Args:
        loss: A loss with one proxy per class.
        scene: Where they start.
        steps: Number of steps, at least 1.
        rate: Learning rate > 0 of the sum of the losses.

    Returns:
        The scene at each step, from 0 on.

    Raises:
        ValueError: If an argument is not allowed.
    """
    check_count("steps", steps, 1, "nothing moves without one")
    check_positive("rate", rate)
    film = {0: scene}
    for step in range(1, steps + 1):
        forces = training_forces(loss, scene)
        assert scene.proxies is not None
        proxies = scene.proxies + rate * forces.on_proxies.unsqueeze(1)
        film[step] = scene = Scene(scene.embeddings + rate * forces.on_embeddings, scene.labels, proxies)
    return film


def plot_force_alignment(
    films: Mapping[str, Mapping[int, tuple[Scene, TrainingForces]]], *, unit: str = "epoch"
) -> Any:
    """Draw one row per training: the forces at its beginning, middle and end, and their mean alignment.

    All arrows in a panel have the same length, as forces differ by orders of magnitude, and at most sixty embeddings
    have one. More than three dimensions are projected to the three principal components of the last scene.

    Args:
        films: For each training, the scenes and their forces by epoch.
        unit: What the epochs are called.

    Source: Figure 4 of the warping paper, by its caption.
    """
    figure = new_figure(15, 3.9 * len(films))
    for row, (name, film) in enumerate(films.items()):
        epochs = sorted(film)
        last = film[epochs[-1]][0].embeddings
        basis = torch.eye(last.shape[1], 3)
        if last.shape[1] > 3:
            basis = torch.linalg.svd(last - last.mean(0), full_matrices=False).Vh[:3].T
        chosen = torch.linspace(0, len(epochs) - 1, min(_PANELS, len(epochs))).round().long().tolist()
        for column, epoch in enumerate(epochs[place] for place in chosen):
            axes = figure.add_subplot(len(films), _PANELS + 1, row * (_PANELS + 1) + column + 1, projection="3d")
            _draw(axes, *film[epoch], basis)
            title = f"{unit} {epoch}: mean cosine {film[epoch][1].mean_alignment:+.2f}"
            axes.set_title(f"{name}\n{title}" if column == 0 else title, fontsize=9, parse_math=False)
        axes = figure.add_subplot(len(films), _PANELS + 1, (row + 1) * (_PANELS + 1))
        axes.plot(epochs, [film[epoch][1].mean_alignment for epoch in epochs], ".-", color=ON_EMBEDDINGS)
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set(ylim=(-1.05, 1.05), xlabel=unit, ylabel="cosine of the forces on\nembedding and own proxy, mean")
        integer_ticks(axes.xaxis)
    return figure


def _draw(axes: Any, scene: Scene, forces: TrainingForces, basis: Float[Tensor, "dim 3"]) -> None:
    assert scene.proxies is not None
    places, proxies = scene.embeddings @ basis, scene.proxies[:, 0] @ basis
    dots, stars = ([class_colour(label) for label in labels] for labels in (scene.labels.tolist(), range(len(proxies))))
    axes.scatter(*places.T.tolist(), c=dots, s=8, depthshade=False)
    axes.scatter(*proxies.T.tolist(), c=stars, s=150, marker="*", edgecolors="black", depthshade=False)
    reach = 1.06 * max(float(places.abs().max()), float(proxies.abs().max())) or 1.0
    some = torch.linspace(0, len(places) - 1, min(_ARROWS, len(places))).long().unique()
    for at, force, paint, width in (
        (places[some], forces.on_embeddings[some], ON_EMBEDDINGS, 0.9),
        (proxies, forces.on_proxies, ON_PROXIES, 1.8),
    ):
        arrows = 0.3 * reach * F.normalize(force, dim=1, eps=1e-30) @ basis
        axes.quiver(*at.T.tolist(), *arrows.T.tolist(), color=paint, linewidth=width, arrow_length_ratio=0.3)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    axes.set_box_aspect((1, 1, 1))
    axes.tick_params(labelsize=6)
