"""A diagram of a training: images, the network, and where it puts them before and after (thesis, figure 2.1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from proxemic.analysis.drawing import class_colour, new_figure
from proxemic.analysis.toy.plots import plot_scene, reach_of
from proxemic.analysis.toy.scenes import Scene

if TYPE_CHECKING:
    from proxemic.data import ImageSet

_CLASSES, _IMAGES = 4, 4  # shown


def draw_training_diagram(images: "ImageSet", before: Scene, after: Scene, network: str) -> Any:
    """Draw images of a few classes, and the embeddings of all before and after the training, a colour per class.

    Args:
        images: Images that were embedded.
        before: Scene before the training, in two or three dimensions.
        after: The same images after it.
        network: Name of the network, above the arrow from images to embeddings.

    Source: Figure 2.1 of the mean-proxy paper, by its caption and section 2.1: embeddings of one class come closer,
        those of different classes go apart.
    """
    classes = images.labels.unique()[:_CLASSES].tolist()
    figure = new_figure(13, 4.3)
    parts: Any = figure.subfigures(1, 3, width_ratios=(1, 1.3, 1.3))
    shown, left, right = parts
    grid = shown.subplots(len(classes), _IMAGES, squeeze=False)
    for row, label in zip(grid, classes, strict=True):
        chosen: Sequence[int] = (images.labels == label).nonzero().squeeze(1)[:_IMAGES].tolist()
        for axes, number in zip(row, [*chosen, *[None] * (_IMAGES - len(chosen))], strict=True):
            _draw_image(axes, None if number is None else images.pixels[number], label)
    shown.suptitle(f"images  →  {network}  →", fontsize=10)
    reach = reach_of([before, after])
    for part, scene, title in ((left, before, "embeddings before the training"), (right, after, "after")):
        deep = scene.embeddings.shape[1] == 3
        axes = part.add_subplot(projection="3d" if deep else None)
        plot_scene(axes, scene, reach)
        axes.set_title(title, fontsize=10)
    return figure


def _draw_image(axes: Any, image: Any, label: int) -> None:
    axes.set(xticks=[], yticks=[])
    if image is None:
        axes.set_visible(False)
        return
    axes.imshow(image.convert("RGB"))
    for side in axes.spines.values():
        side.set(color=class_colour(label), linewidth=2.5)
