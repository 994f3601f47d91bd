"""Measure and draw embeddings and proxies at points in time of a training, also as an animation."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.analysis.drawing import add_legend, class_colour, new_figure
from proxemic.files import write_atomically

if TYPE_CHECKING:
    from proxemic.data import ImageSet

_COLOURS = 10
_CLASSES, _IMAGES = 4, 4  # shown in the diagram of a training


@dataclass(frozen=True, eq=False)
class Scene:
    """Embeddings with their classes, and proxies if there are any, at a point in time of a training."""

    embeddings: Float[Tensor, "images dim"]
    labels: Int64[Tensor, " images"]
    proxies: Float[Tensor, "classes proxies dim"] | None = None


def separation(scene: Scene) -> dict[str, float]:
    """Measure how compact classes are and how far apart, in any number of dimensions."""
    embeddings, labels = scene.embeddings.double(), scene.labels
    count = labels.bincount().unsqueeze(1)
    means = torch.zeros(len(count), embeddings.shape[1], dtype=torch.float64).index_add(0, labels, embeddings) / count
    away = (embeddings - means[labels]).norm(dim=1)
    within = float((torch.zeros(len(count), dtype=torch.float64).index_add(0, labels, away) / count[:, 0]).mean())
    apart = torch.cdist(means, means)
    others = apart[~torch.eye(len(means), dtype=torch.bool)].view(len(means), -1)
    nearest = float(others.amin(1).mean())
    ratio = nearest / within if within else float("inf")
    return {"within": within, "between": float(others.mean()), "nearest": nearest, "ratio": ratio}


def plot_scene(axes: Any, scene: Scene, reach: float) -> None:
    """Replace the scene on Matplotlib's axes, which reach from -reach to reach."""
    for artist in [*axes.collections, *(line for line in axes.lines if len(line.get_xdata(orig=True)))]:
        artist.remove()
    deep = scene.embeddings.shape[1] == 3
    more: dict[str, Any] = {"depthshade": False} if deep else {}
    colours = [class_colour(label) for label in scene.labels.tolist()]
    axes.scatter(*scene.embeddings.T.tolist(), c=colours, s=7, alpha=0.6, linewidths=0, **more)
    if scene.proxies is not None:
        classes, per_class, _ = scene.proxies.shape
        stars = [class_colour(label) for label in range(classes) for _ in range(per_class)]
        places = scene.proxies.flatten(0, 1).T.tolist()
        axes.scatter(*places, c=stars, s=130, marker="*", edgecolors="black", linewidths=0.8, zorder=5, **more)
    limits = (-reach, reach)
    axes.set(xlim=limits, ylim=limits, **({"zlim": limits} if deep else {}))
    axes.set_box_aspect((1, 1, 1) if deep else 1)
    axes.tick_params(labelsize=7)


def plot_scenes(scenes: Mapping[str, Scene], class_names: Sequence[str]) -> Any:
    """Draw scenes side by side with their titles: a dot per embedding, a star per proxy, a colour per class."""
    figure, axes = _panels(scenes, class_names)
    for panel, scene in zip(axes, scenes.values(), strict=True):
        plot_scene(panel, scene, reach_of([scene]))
    return figure


def animate_scenes(films: Mapping[str, Mapping[int, Scene]], class_names: Sequence[str], path: Path) -> Path:
    """Write an animated GIF of scenes over the epochs that all films have, side by side, in axes that do not change."""
    from PIL import Image

    epochs = sorted(set.intersection(*(set(film) for film in films.values())))
    if not epochs:
        raise ValueError("films have no epoch in common, but are shown side by side: give runs with common epochs.")
    figure, axes = _panels({title: film[epochs[-1]] for title, film in films.items()}, class_names)
    reaches = [reach_of([film[epoch] for epoch in epochs]) for film in films.values()]
    frames = []
    for epoch in epochs:
        for panel, film, reach in zip(axes, films.values(), reaches, strict=True):
            plot_scene(panel, film[epoch], reach)
        figure.supxlabel(f"epoch {epoch}", fontsize=10)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=70, format="png")
        frame = Image.open(drawn, formats=["PNG"]).convert("RGB")
        frames.append(frame.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE))
        figure.set_layout_engine("none")  # keep the first layout, so that only the embeddings move
    durations = [*[200] * (len(frames) - 1), 2000]  # milliseconds
    with write_atomically(path) as temporary:
        frames[0].save(
            temporary, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, disposal=1
        )
    return path


def draw_training_diagram(images: "ImageSet", before: Scene, after: Scene, network: str) -> Any:
    """Draw images of some classes, and all embeddings before and after training (mean-proxy paper, figure 2.1)."""
    classes = images.labels.unique()[:_CLASSES].tolist()
    figure = new_figure(13, 4.3)
    shown, *parts = figure.subfigures(1, 3, width_ratios=(1, 1.3, 1.3))
    for row, label in zip(shown.subplots(len(classes), _IMAGES, squeeze=False), classes, strict=True):
        numbers = (images.labels == label).nonzero().squeeze(1)[:_IMAGES].tolist()
        for axes, number in zip_longest(row, numbers):
            axes.set(xticks=[], yticks=[], visible=number is not None)
            axes.spines[:].set(color=class_colour(label), linewidth=2.5)
            if number is not None:
                axes.imshow(images.pictures[number].convert("RGB"))
    shown.suptitle(f"images  →  {network}  →", fontsize=10)
    titles = ("embeddings before training", "after")
    for part, scene, title in zip(parts, (before, after), titles, strict=True):
        axes = part.add_subplot(projection="3d" if scene.embeddings.shape[1] == 3 else None)
        plot_scene(axes, scene, reach_of([before, after]))
        axes.set_title(title, fontsize=10)
    return figure


def _panels(scenes: Mapping[str, Scene], class_names: Sequence[str]) -> tuple[Any, list[Any]]:
    columns = len(scenes) if len(scenes) < 4 else math.ceil(math.sqrt(len(scenes)))
    lines = -(-len(scenes) // columns)
    figure = new_figure(4 * columns + 0.8, 4 * lines + 0.3)
    axes: list[Any] = []
    for place, (title, scene) in enumerate(scenes.items(), start=1):
        projection: Any = "3d" if scene.embeddings.shape[1] == 3 else None
        axes.append(figure.add_subplot(lines, columns, place, projection=projection))
        axes[-1].set_title(title, fontsize=10, parse_math=False)
    if len(class_names) > _COLOURS:
        figure.suptitle(f"{len(class_names)} classes in {_COLOURS} colours", fontsize=9)
    else:
        dot = {"linestyle": "", "marker": "o", "markersize": 6}
        styles = [(name, dot | {"color": class_colour(label)}) for label, name in enumerate(class_names)]
        add_legend(figure, styles, loc="outside right center")
    return figure, axes


def reach_of(scenes: Sequence[Scene]) -> float:
    """Compute how far axes must reach from the origin to show all embeddings and proxies."""
    parts = [places for scene in scenes for places in (scene.embeddings, scene.proxies) if places is not None]
    return 1.06 * max(float(part.abs().max()) for part in parts) or 1.0
