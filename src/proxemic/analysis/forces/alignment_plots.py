"""Three-dimensional plots of the forces over a training, as figure 4 of the warping paper."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.drawing import class_colour, integer_ticks, new_figure
from proxemic.analysis.forces.alignment import TrainingForces
from proxemic.analysis.toy.scenes import Scene

ON_EMBEDDINGS, ON_PROXIES = "#aa3399", "black"
_ARROWS = 60  # a panel
_PANELS = 3

Film = Mapping[int, tuple[Scene, TrainingForces]]


def plot_force_alignment(films: Mapping[str, Film], *, unit: str = "epoch") -> Any:
    """Draw a row for each training: the forces at its beginning, on the way and at its end, and their mean alignment.

    Arrows are of one length in a panel, as forces differ by orders of magnitude; of many embeddings sixty have one.
    More than three dimensions are drawn on the three principal components of the last scene.

    Args:
        films: For each name the scenes and their forces by epoch.
        unit: What the epochs are called.

    Source: Figure 4 of the warping paper, by its caption.
    """
    figure = new_figure(15, 3.9 * len(films))
    for row, (name, film) in enumerate(films.items()):
        epochs = sorted(film)
        basis = _basis(film[epochs[-1]][0].embeddings)
        for column, epoch in enumerate(_chosen(epochs)):
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


def _chosen(epochs: Sequence[int]) -> list[int]:
    """The first, one in the middle and the last, or as many as there are."""
    places = torch.linspace(0, len(epochs) - 1, min(_PANELS, len(epochs))).round().long()
    return [epochs[place] for place in places.tolist()]


def _basis(embeddings: Float[Tensor, "images dim"]) -> Float[Tensor, "dim 3"]:
    dim = embeddings.shape[1]
    if dim <= 3:
        return torch.eye(dim, 3)
    return torch.linalg.svd(embeddings - embeddings.mean(0), full_matrices=False).Vh[:3].T


def _draw(axes: Any, scene: Scene, forces: TrainingForces, basis: Float[Tensor, "dim 3"]) -> None:
    assert scene.proxies is not None
    places, proxies = scene.embeddings @ basis, scene.proxies[:, 0] @ basis
    dots = [class_colour(label) for label in scene.labels.tolist()]
    axes.scatter(*places.T.tolist(), c=dots, s=8, depthshade=False)
    stars = [class_colour(label) for label in range(len(proxies))]
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
