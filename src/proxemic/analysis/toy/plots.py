"""Embeddings in two or three dimensions, side by side, as a figure and over the epochs as an animation."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.analysis.drawing import add_legend, class_colour, new_figure
from proxemic.analysis.toy.scenes import Scene
from proxemic.files import write_atomically

_COLOURS = 10


def plot_scenes(scenes: Mapping[str, Scene], class_names: Sequence[str]) -> Any:
    """Draw scenes side by side: a dot an embedding, a star per proxy, a colour per class.

    Args:
        scenes: Scenes by their titles, each of two or three dimensions.
        class_names: For the legend; above ten colours repeat, and there is none.

    Source: Figure 10 of the warping paper.

    >>> import torch
    >>> scene = Scene(torch.eye(2), torch.tensor([0, 1]), torch.ones(2, 1, 2))
    >>> len(plot_scenes({"one": scene, "other": scene}, ["a", "b"]).axes)
    2
    """
    figure, axes = _stage(scenes, class_names)
    for panel, scene in zip(axes, scenes.values(), strict=True):
        plot_scene(panel, scene, reach_of([scene]))
    return figure


def animate_scenes(
    films: Mapping[str, Mapping[int, Scene]], class_names: Sequence[str], path: Path, *, frames_per_second: int = 5
) -> Path:
    """Write an animated GIF of scenes over the epochs, side by side, in frames that do not move.

    Args:
        films: For each title the scene of each epoch; the epochs that all have are shown.
        class_names: For the legend.
        path: Path of the GIF.
        frames_per_second: At least 1; the last frame stays for two seconds.

    Raises:
        ValueError: If the films have no epoch in common.
    """
    epochs = sorted(set.intersection(*(set(film) for film in films.values())))
    if not epochs:
        raise ValueError("films have no epoch in common, but are shown side by side: give runs with the same epochs.")
    figure, axes = _stage({title: film[epochs[-1]] for title, film in films.items()}, class_names)
    # At the end of the training embeddings are usually the farthest apart.
    reaches = [reach_of([film[epoch] for epoch in epochs]) for film in films.values()]

    frames = []
    for epoch in epochs:
        for panel, film, reach in zip(axes, films.values(), reaches, strict=True):
            plot_scene(panel, film[epoch], reach)
        figure.supxlabel(f"epoch {epoch}", fontsize=10)
        frames.append(_frame(figure))
        figure.set_layout_engine("none")  # laid out once, so that nothing moves but the embeddings
    duration = 1000 // frames_per_second
    with write_atomically(path) as temporary:
        durations = [*[duration] * (len(frames) - 1), 2000]
        frames[0].save(
            temporary, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, disposal=1
        )
    return path


def _frame(figure: Any) -> Any:
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=70, format="png")
    return Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def _stage(scenes: Mapping[str, Scene], class_names: Sequence[str]) -> tuple[Any, list[Any]]:
    columns = len(scenes) if len(scenes) < 4 else math.ceil(math.sqrt(len(scenes)))
    lines = -(-len(scenes) // columns)
    figure = new_figure(4 * columns + 0.8, 4 * lines + 0.3)
    axes: list[Any] = []
    for place, (title, scene) in enumerate(scenes.items(), start=1):
        projection: Any = "3d" if scene.embeddings.shape[1] == 3 else None
        axes.append(figure.add_subplot(lines, columns, place, projection=projection))
        axes[-1].set_title(title, fontsize=10, parse_math=False)
    dots = [
        axes[0].plot([], [], "o", color=class_colour(label), label=name, markersize=6)[0]
        for label, name in enumerate(class_names)
    ]
    if len(dots) > _COLOURS:
        figure.suptitle(f"{len(class_names)} classes in {_COLOURS} colours", fontsize=9)
        return figure, axes
    add_legend(figure, handles=dots, loc="outside right center")
    return figure, axes


def plot_scene(axes: Any, scene: Scene, reach: float) -> None:
    """Draw a scene on Matplotlib's axes, in place of the one before, within ``reach`` of the origin."""
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


def reach_of(scenes: Sequence[Scene]) -> float:
    """How far axes reach from the origin to show all embeddings and proxies."""
    parts = [places for scene in scenes for places in (scene.embeddings, scene.proxies) if places is not None]
    return 1.06 * max(float(part.abs().max()) for part in parts) or 1.0
