"""Pictures of a run: training curves and a retrieval gallery."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.files import write_atomically
from proxemic.metrics import nearest_neighbours

__all__ = ["draw_curves", "draw_gallery"]

RIGHT, WRONG, QUERY = "#1a9641", "#d7191c", "#444444"


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
    _save(figure, path)


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

    figure = Figure(figsize=(1.15 * (columns + 1), 1.35 * len(chosen) + 0.4), layout="constrained")
    grid = figure.subplots(len(chosen), columns + 1, squeeze=False)
    for row, query in enumerate(chosen.tolist()):
        own = int(images.labels[query])
        _thumbnail(grid[row][0], images, query, QUERY)
        for column, hit in enumerate(found[row].tolist(), start=1):
            _thumbnail(grid[row][column], images, hit, RIGHT if int(images.labels[hit]) == own else WRONG)
    grid[0][0].annotate("query", (0.5, 1.25), xycoords="axes fraction", ha="center", fontsize=8, weight="bold")
    grid[0][1].annotate("nearest", (0.5, 1.25), xycoords="axes fraction", ha="center", fontsize=8, weight="bold")
    _save(figure, path)


def _thumbnail(axes: Axes, images: ImageSet, index: int, colour: str) -> None:
    picture = images.pixels[index].convert("RGB")
    picture.thumbnail((128, 128))
    axes.imshow(picture)
    name = images.class_names[int(images.labels[index])]
    axes.set_title(name if len(name) <= 16 else f"…{name[-15:]}", fontsize=6, parse_math=False, pad=2)
    axes.set(xticks=[], yticks=[])
    axes.set_box_aspect(1)
    axes.set_aspect("equal", adjustable="datalim")
    for side in axes.spines.values():
        side.set(edgecolor=colour, linewidth=2.5)


def _save(figure: Figure, path: Path) -> None:
    with write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
