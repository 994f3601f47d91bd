"""Pictures of a run: training curves and a retrieval gallery."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.figures import save_figure
from proxemic.metrics import nearest_neighbours

__all__ = ["draw_curves", "draw_gallery"]

RIGHT, WRONG, QUERY = "#1a9641", "#d7191c", "#444444"
_TILE_WIDTH, _TILE_HEIGHT, _HEADER = 1.15, 1.35, 0.3  # inches


def draw_curves(history: Sequence[dict[str, float]], metric: str, path: Path) -> None:
    """Training loss and validation metric over epochs, with the best epoch marked.

    Args:
        history: Rows with ``epoch``, ``loss`` and, where there was a validation, metrics.
        metric: The metric that chose the epoch.
        path: PNG to write.
    """
    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [row["loss"] for row in history], marker=".")
    left.set(xlabel="epoch", ylabel="training loss", title="Loss")
    judged = [name for name in ("recall@1", metric) if all(name in row for row in history)]
    for name in dict.fromkeys(judged):
        right.plot(epochs, [row[name] for row in history], marker=".", label=name)
    if metric in judged:
        best = max(history, key=lambda row: row[metric])
        right.axvline(
            best["epoch"], color="grey", linewidth=1, linestyle=":", label=f"chosen: epoch {best['epoch']:.0f}"
        )
    if judged:
        right.legend()
    else:
        right.text(0.5, 0.5, "no validation: the last epoch is taken", ha="center", transform=right.transAxes)
    right.set(xlabel="epoch", ylabel="on held-out classes", title="Validation")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    save_figure(figure, path)


def draw_gallery(
    embeddings: Float[Tensor, "images dim"],
    images: ImageSet,
    path: Path,
    *,
    distance: Literal["cosine", "euclidean"] = "cosine",
    queries: int = 10,
    neighbours: int = 8,
    seed: int = 0,
) -> None:
    """Random queries, a row each, with their nearest neighbours: right ones framed green, wrong ones red.

    Args:
        embeddings: One an image.
        images: What was embedded; its queries search its gallery, or all search all.
        path: PNG to write.
        distance: Between embeddings.
        queries: Rows; at most.
        neighbours: Columns; at most.
        seed: Chooses the queries.
    """
    everything = torch.ones(len(images), dtype=torch.bool)
    asked = (everything if images.is_query is None else images.is_query).nonzero().squeeze(1)
    searched = (everything if images.is_gallery is None else images.is_gallery).nonzero().squeeze(1)
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(seed))[:queries]
    chosen = asked[order].sort().values
    place = torch.full((len(images),), -1).index_copy(0, searched, torch.arange(len(searched)))
    columns = min(neighbours, len(searched) - 1)
    if columns < 1:
        return  # a gallery of one image, which may be the query itself
    _, found = nearest_neighbours(
        embeddings[chosen], embeddings[searched], k=columns, distance=distance, exclude=place[chosen]
    )
    found = searched[found]

    # One drawing for all: axes of its own for every picture take matplotlib seconds.
    width, height = _TILE_WIDTH * (columns + 1), _TILE_HEIGHT * len(chosen) + _HEADER
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for row, query in enumerate(chosen.tolist()):
        own = int(images.labels[query])
        for column, shown in enumerate([query, *found[row].tolist()]):
            colour = QUERY if column == 0 else RIGHT if int(images.labels[shown]) == own else WRONG
            _thumbnail(axes, row, column, images, shown, colour)
    for column, title in enumerate(("query", "nearest")):
        axes.text(_TILE_WIDTH * (column + 0.5), _HEADER / 2, title, ha="center", va="center", fontsize=8, weight="bold")
    save_figure(figure, path)


def _thumbnail(axes: Axes, row: int, column: int, images: ImageSet, index: int, colour: str) -> None:
    picture = images.pixels[index].convert("RGB")
    picture.thumbnail((128, 128))
    # A square of one inch, the name above it, the picture in its middle.
    left, top = _TILE_WIDTH * (column + 0.5) - 0.5, _HEADER + _TILE_HEIGHT * (row + 1) - 1.1
    half_width, half_height = (side / max(picture.size) / 2 for side in picture.size)
    middle, centre = left + 0.5, top + 0.5
    extent = (middle - half_width, middle + half_width, centre + half_height, centre - half_height)
    axes.imshow(picture, extent=extent, aspect="auto")
    axes.add_patch(Rectangle((left, top), 1, 1, fill=False, edgecolor=colour, linewidth=2.5))
    name = images.class_names[int(images.labels[index])]
    name = name if len(name) <= 16 else f"…{name[-15:]}"
    axes.text(middle, top - 0.04, name, ha="center", va="bottom", fontsize=6, parse_math=False)
