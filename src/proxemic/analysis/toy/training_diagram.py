"""A diagram of a training: images, the network, and where it puts them before and after (thesis, figure 2.1)."""

from collections.abc import Sequence
from typing import Any

import torch

from proxemic.analysis.toy.plots import Scene, plot_scene
from proxemic.data import ImageSet
from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from matplotlib import colormaps
    from matplotlib.figure import Figure

__all__ = ["draw_training_diagram"]

_CLASSES, _IMAGES = 4, 4  # shown


def draw_training_diagram(images: ImageSet, before: Scene, after: Scene, network: str) -> Figure:
    """Draw images of a few classes, and the embeddings of all before and after the training, a colour a class.

    Args:
        images: Those that were embedded.
        before: In two or three dimensions.
        after: The same images.
        network: Its name, above the arrow from images to embeddings.

    Source: Figure 2.1 of the mean-proxy paper, by its caption and section 2.1: embeddings of one class come closer,
        those of different classes go apart.
    """
    classes = images.labels.unique()[:_CLASSES].tolist()
    figure = Figure(figsize=(13, 4.3), layout="constrained")
    parts: Any = figure.subfigures(1, 3, width_ratios=(1, 1.3, 1.3))
    pictures, left, right = parts
    grid = pictures.subplots(len(classes), _IMAGES, squeeze=False)
    for row, label in zip(grid, classes, strict=True):
        chosen: Sequence[int] = (images.labels == label).nonzero().squeeze(1)[:_IMAGES].tolist()
        for axes, number in zip(row, [*chosen, *[None] * (_IMAGES - len(chosen))], strict=True):
            _draw_image(axes, None if number is None else images.pixels[number], label)
    pictures.suptitle(f"images  →  {network}  →", fontsize=10)
    reach = 1.06 * max(float(each.abs().max()) for scene in (before, after) for each in _places(scene)) or 1.0
    for part, scene, title in ((left, before, "embeddings before the training"), (right, after, "after")):
        deep = scene.embeddings.shape[1] == 3
        axes = part.add_subplot(projection="3d" if deep else None)
        plot_scene(axes, scene, reach)
        axes.set_title(title, fontsize=10)
    return figure


def _places(scene: Scene) -> list[torch.Tensor]:
    return [scene.embeddings] if scene.proxies is None else [scene.embeddings, scene.proxies]


def _draw_image(axes: Any, picture: Any, label: int) -> None:
    axes.set(xticks=[], yticks=[])
    if picture is None:
        axes.set_visible(False)
        return
    axes.imshow(picture.convert("RGB"))
    for side in axes.spines.values():
        side.set(color=colormaps["tab10"](label % 10), linewidth=2.5)
