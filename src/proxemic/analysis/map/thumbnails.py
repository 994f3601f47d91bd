"""Thumbnails on a map, where they hide nothing."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from proxemic.extras import optional_dependency

_INCHES, _PIXELS = 0.36, 96
_MOST, _TRIES = 40, 400


def place_thumbnails(
    points: Float64[Tensor, "rows 2"],
    order: Sequence[int],
    *,
    side: float,
    frame: float,
    avoid: Float64[Tensor, "others 2"] | None = None,
    most: int = _MOST,
) -> dict[int, tuple[float, float]]:
    """Squares beside points, greedily: each within the frame, over no point, and over no other square.

    Args:
        points: Places in the square from (0, 0) to (frame, frame).
        order: Which points are to have a square, the first first.
        side: Side of a square.
        frame: Side of the map.
        avoid: What else is not to be hidden.
        most: Largest number of squares.

    Returns:
        The centre of the square of each point that has one.

    >>> points = torch.tensor([[2.0, 2.0], [2.1, 2.0]], dtype=torch.float64)
    >>> sorted(place_thumbnails(points, [0, 1], side=1.0, frame=4.0))
    [0, 1]
    """
    turn = torch.arange(16, dtype=torch.float64) * (torch.pi / 8)
    around = torch.stack([turn.cos(), turn.sin()], 1)
    offsets = torch.cat([side * distance * around for distance in (0.9, 1.25)])
    hidden = points if avoid is None else torch.cat([points, avoid])
    placed: dict[int, tuple[float, float]] = {}
    for index in order:
        if len(placed) == most:
            break
        centres = points[index] + offsets
        free = ((centres - frame / 2).abs() <= (frame - side) / 2).all(1)
        free &= ~_near(centres, hidden, 0.65 * side)
        taken = torch.tensor([*placed.values()], dtype=torch.float64).view(-1, 2)
        free &= ~_near(centres, taken, 1.06 * side)
        if free.any():
            x, y = centres[int(free.int().argmax())].tolist()
            placed[index] = (x, y)
    return placed


def _near(
    centres: Float64[Tensor, "centres 2"], others: Float64[Tensor, "others 2"], reach: float
) -> Bool[Tensor, "centres"]:
    """Which centres have one of the others within reach, along both axes."""
    return ((centres[:, None] - others).abs() < reach).all(2).any(1)


def draw_thumbnails(
    axes: Any,
    points: Float64[Tensor, "rows 2"],
    labels: Int64[Tensor, "rows"],
    colours: Sequence[str],
    thumbnails: Callable[[int], Any],
    *,
    avoid: Float64[Tensor, "others 2"],
    corner: tuple[float, float],
    side: float,
    scale: float,
) -> None:
    """Draw images beside points, framed and tied to them in their colours; every class's first before any second.

    Args:
        axes: Square Matplotlib axes.
        points: Places in the units of the axes, as are `avoid` and `corner`.
        labels: Class of each point.
        colours: Colour of each point.
        thumbnails: Function from the number of a point to its PIL image.
        avoid: What is not to be hidden besides the points.
        corner: The lower left one of the axes.
        side: Side of the axes, in inches.
        scale: How long an inch is.
    """
    with optional_dependency("train"):
        from matplotlib.patches import Rectangle
    origin = torch.tensor(corner, dtype=torch.float64)
    by_class = [(labels == label).nonzero().flatten().tolist() for label in labels.unique().tolist()]
    order = [index for turn in zip_longest(*by_class) for index in turn if index is not None][:_TRIES]
    placed = place_thumbnails(
        (points - origin) / scale, order, side=_INCHES, frame=side, avoid=(avoid - origin) / scale
    )
    half = scale * _INCHES / 2
    for index, centre in placed.items():
        x, y = (origin + scale * torch.tensor(centre)).tolist()
        image = thumbnails(index).convert("RGB")
        image.thumbnail((_PIXELS, _PIXELS))
        wide, high = (half * length / max(image.size) for length in image.size)
        place, point = (x - half, y - half), points[index].tolist()
        axes.plot([x, point[0]], [y, point[1]], color=colours[index], linewidth=0.8, zorder=1)
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, color="white", zorder=1.5))
        axes.imshow(image, extent=(x - wide, x + wide, y - high, y + high), aspect="auto", zorder=1.6)
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, fill=False, edgecolor=colours[index], zorder=1.7))
