"""Plots of a run: training curves and a retrieval gallery."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.data.reading import cut_thin
from proxemic.files import write_atomically
from proxemic.runs.evaluate import results_of

_QUERIES = 10
_RIGHT, _WRONG, _QUERY = "#1a9641", "#d7191c", "#444444"
_TILE_WIDTH, _TILE_HEIGHT, _HEADER, _SIDE, _FRAME = 138, 162, 36, 120, 4  # pixels


def draw_curves(
    history: Sequence[dict[str, float]],
    metric: str,
    path: Path,
    *,
    chosen: float | None = None,
    start: float | None = None,
) -> None:
    """Plot training loss and validation metric over epochs, with the selected epoch and the second phase marked.

    ``start`` is the best value of the metric before training.
    """
    from matplotlib.figure import Figure  # half a second, which the first step need not wait for

    from proxemic.plots import save_figure

    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(8, 3.5))
    left, right = figure.subplots(
        1, 2, gridspec_kw={"left": 0.11, "right": 0.98, "bottom": 0.15, "top": 0.9, "wspace": 0.25}
    )
    left.plot(epochs, [row["loss"] for row in history], marker=".")
    left.set(xlabel="epoch", ylabel="training loss", title="Loss")
    plotted = [name for name in ("recall@1", metric) if all(name in row for row in history)]
    for name in dict.fromkeys(plotted):
        right.plot(epochs, [row[name] for row in history], marker=".", label=name)
    if metric in plotted and start is not None:
        name = f"{'' if chosen else 'selected: '}before training"
        right.axhline(start, color="grey", linewidth=1, linestyle="--", label=f"{name}, {metric}")
    if metric in plotted and chosen:
        right.axvline(chosen, color="grey", linewidth=1, linestyle=":", label=f"selected: epoch {chosen:.0f}")
    if history[-1].get("phase") == 2:
        begins = next(row["epoch"] for row in history if row["phase"] == 2)
        for axes in (left, right):
            axes.axvline(begins - 0.5, color="tab:green", linewidth=1, linestyle="--", label="second phase")
    if plotted:
        right.legend()
    else:
        right.text(0.5, 0.5, "no validation: the last epoch is kept", ha="center", transform=right.transAxes)
    right.set(xlabel="epoch", ylabel="on held-out images", title="Validation")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    save_figure(figure, path)


def draw_gallery(
    embeddings: Float[Tensor, "images dim"],
    images: ImageSet,
    path: Path,
    *,
    distance: Literal["cosine", "euclidean"] = "cosine",
    neighbours: int = 8,
) -> None:
    """Draw random queries, one per row, with their nearest neighbours: correct ones framed green, wrong ones red.

    No file is written for vectors.
    """
    if images.kind == "vectors":
        return
    import matplotlib

    results = results_of(embeddings, images, distance, neighbours)
    order = torch.randperm(len(results.queries), generator=torch.Generator().manual_seed(0))[:_QUERIES]
    queries = results.queries[order].sort().values
    is_query = torch.zeros(len(images), dtype=torch.bool).index_fill(0, queries, True)
    found = replace(results, is_query=is_query).neighbours
    columns = found.shape[1]
    if columns < 1:
        return  # a gallery of one image, which may be the query itself
    # Pasted into one image, since axes for every image would take matplotlib seconds.
    sheet = Image.new("RGB", (_TILE_WIDTH * (columns + 1), _TILE_HEIGHT * len(queries) + _HEADER), "white")
    draw = ImageDraw.Draw(sheet)
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    font, bold = ImageFont.truetype(fonts / "DejaVuSans.ttf", 10), ImageFont.truetype(fonts / "DejaVuSans-Bold.ttf", 13)
    for column, title in enumerate(("query", "nearest")):
        draw.text((_TILE_WIDTH * column + _TILE_WIDTH // 2, _HEADER // 2), title, "black", bold, anchor="mm")
    for row, query in enumerate(queries.tolist()):
        # Below 0, the rest of the gallery has the query's sequence.
        shown = [query, *(place for place in found[row].tolist() if place >= 0)]
        for column, index in enumerate(shown):
            right = bool(images.labels[index] == images.labels[query])
            tile = ImageOps.expand(_square(images, index), _FRAME, (_RIGHT if right else _WRONG) if column else _QUERY)
            middle, bottom = _TILE_WIDTH * column + _TILE_WIDTH // 2, _HEADER + _TILE_HEIGHT * (row + 1) - _FRAME
            sheet.paste(tile, (middle - tile.width // 2, bottom - tile.height))
            name = images.class_names[int(images.labels[index])]
            name = name if len(name) <= 16 else f"…{name[-15:]}"
            draw.text((middle, bottom - tile.height), name, "black", font, anchor="ms")
    with write_atomically(path) as temporary:
        sheet.save(temporary, format="PNG")


def _square(images: ImageSet, index: int) -> Image.Image:
    """Resize an image to fit into the middle of a white square."""
    image = cut_thin(images.pictures.load(index, 2 * _SIDE, "auto")).convert("RGB")
    method = Image.Resampling.BICUBIC if max(image.size) > _SIDE else Image.Resampling.NEAREST
    return ImageOps.pad(image, (_SIDE, _SIDE), method, color="white")
