"""The plot of a map: points and proxies in the colours of their classes, and thumbnails where they hide nothing."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from proxemic.analysis.drawing import add_legend
from proxemic.extras import optional_dependency

# Told apart by colour-blind eyes too (Okabe and Ito); the shapes tell apart classes of one colour.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
SHAPES = ("o", "s", "^", "D")
NAMED_CLASSES = len(COLOURS) * len(SHAPES)
OTHERS = "#b5b5b5"
_SIDE, _LEFT, _BOTTOM, _TOP, _LEGEND = 6.4, 0.75, 0.6, 0.45, 2.4  # inches
_THUMBNAIL, _PIXELS = 0.36, 96  # side of a thumbnail in inches, and its largest side in pixels
_MOST, _TRIES = 40, 400


def plot_map(
    points: Float64[Tensor, "rows 2"],
    labels: Int64[Tensor, "..."],
    class_names: Sequence[str],
    *,
    proxies: Float64[Tensor, "proxies 2"] | None = None,
    proxy_labels: Int64[Tensor, "..."] | None = None,
    thumbnails: Callable[[int], Any] | None = None,
    axis_names: tuple[str, str] | None = None,
    title: str = "",
) -> Any:
    """Draw embeddings in two dimensions, with equal scales on both axes.

    Up to 24 classes have a colour and shape each and are named. With more, colours and shapes repeat, which the legend
    says instead of naming them.

    Args:
        points: Places of the embeddings, at least one.
        labels: Class of each point, from 0 to the number of names - 1.
        class_names: Names of the classes; long ones are cut.
        proxies: Places of proxies, drawn as stars of the class's colour with its shape inside.
        proxy_labels: Class of each, or -1 for one of a class that is not drawn, whose star is grey.
        thumbnails: Function from the number of a point to its PIL image; drawn where they hide nothing.
        axis_names: Names of the axes, with units; None draws no scale, for places that have no meaning.
        title: Title of the map.

    Raises:
        ValueError: If the arguments do not fit together.

    >>> from proxemic.analysis.map.projections import principal_components
    >>> embeddings = torch.eye(4)
    >>> places = principal_components(embeddings).project(embeddings)
    >>> len(plot_map(places, torch.tensor([0, 0, 1, 1]), ["cat", "dog"]).axes)
    1
    """
    if len(points) == 0 or len(labels) != len(points):
        raise ValueError(
            f"points has {len(points)} rows and labels {len(labels)}, but each point, one or more, has one."
        )
    stars = points[:0] if proxies is None else proxies
    star_labels = labels[:0] if proxy_labels is None else proxy_labels
    if len(stars) != len(star_labels):
        raise ValueError("proxies and proxy_labels do not fit together: give both, one label per proxy, or none.")
    everyone = torch.cat([labels, star_labels])
    if labels.min() < 0 or everyone.min() < -1 or everyone.max() >= len(class_names):
        raise ValueError(
            f"labels and proxy_labels must be from 0 to {len(class_names) - 1}, numbers of class_names, or -1 for a "
            "proxy of another class."
        )
    with optional_dependency("train"):
        from matplotlib.figure import Figure
    width, height = _LEFT + _SIDE + _LEGEND, _BOTTOM + _SIDE + _TOP
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((_LEFT / width, _BOTTOM / height, _SIDE / width, _SIDE / height))
    places = torch.cat([points, stars])
    low, high = places.amin(0), places.amax(0)
    reach = (float((high - low).max()) or 1.0) * 1.12
    corner = (low + high - reach) / 2
    if thumbnails is not None:
        _draw_thumbnails(axes, points, labels, thumbnails, avoid=stars, corner=corner, scale=reach / _SIDE)
    for label in labels.unique().tolist():
        members = points[labels == label]
        axes.plot(*members.T, **_style(label), linestyle="", markersize=5, markeredgewidth=0.4, zorder=3)
    for label in star_labels.unique().tolist():  # those of other classes, -1, first
        places = stars[star_labels == label]
        if label < 0:
            axes.plot(*places.T, "*", color=OTHERS, markersize=8, markeredgecolor="white", zorder=2)
        else:
            style = _style(label)
            axes.plot(*places.T, "*", color=style["color"], markersize=16, markeredgecolor="black", zorder=4)
            inside = style | {"color": "white", "markeredgewidth": 0}
            axes.plot(*places.T, **inside, linestyle="", markersize=4.5, zorder=4.1)
    x, y = corner.tolist()
    axes.set(xlim=(x, x + reach), ylim=(y, y + reach))
    if axis_names is None:
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel("no scale: only who is near whom has a meaning", fontsize=9)
    else:
        axes.set_xlabel(axis_names[0], fontsize=9)
        axes.set_ylabel(axis_names[1], fontsize=9)
        axes.tick_params(labelsize=8)
    axes.spines[:].set_color("#999999")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    _draw_legend(axes, labels.unique().tolist(), class_names, star_labels)
    return figure


def _draw_legend(axes: Any, present: Sequence[int], class_names: Sequence[str], star_labels: Tensor) -> None:
    named = len(class_names) <= NAMED_CLASSES
    styles = [(_cut(class_names[label]), _style(label) | {"linestyle": ""}) for label in present if named]
    star = {"marker": "*", "linestyle": "", "markersize": 11}
    if (star_labels >= 0).any():
        styles.append(("proxy of a class", star | {"color": "white", "markeredgecolor": "black"}))
    if (star_labels < 0).any():
        styles.append(("proxy of another class", star | {"color": OTHERS, "markeredgecolor": "white"}))
    title = None if named else f"{len(present)} classes:\ncolours and shapes repeat"
    add_legend(
        axes, styles, title=title, title_fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0,
        alignment="left",
    )  # fmt: skip


def _style(label: int) -> dict[str, Any]:
    shape = SHAPES[label // len(COLOURS) % len(SHAPES)]
    return {"color": COLOURS[label % len(COLOURS)], "marker": shape, "markeredgecolor": "white"}


def _cut(name: str) -> str:
    # An underscore in front would hide it from matplotlib's legend.
    name = f" {name}" if name.startswith("_") else name
    return name if len(name) <= 26 else f"{name[:25]}…"


def place_thumbnails(
    points: Float64[Tensor, "rows 2"],
    order: Sequence[int],
    *,
    side: float,
    frame: float,
    avoid: Float64[Tensor, "others 2"] | None = None,
    most: int = _MOST,
) -> dict[int, tuple[float, float]]:
    """The centres of squares beside points, greedily: each within the frame, over no point, and over no other square.

    The frame reaches from (0, 0) to (frame, frame). At most `most` points have a square, by the order given; `avoid`
    holds places beside the points that are not to be hidden.

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


def _draw_thumbnails(
    axes: Any,
    points: Float64[Tensor, "rows 2"],
    labels: Int64[Tensor, "rows"],
    thumbnails: Callable[[int], Any],
    *,
    avoid: Float64[Tensor, "others 2"],
    corner: Float64[Tensor, "2"],
    scale: float,
) -> None:
    """Draw images framed and tied to their points, one of each class first; the axes begin at the corner."""
    from matplotlib.patches import Rectangle

    by_class = [(labels == label).nonzero().flatten().tolist() for label in labels.unique().tolist()]
    order = [index for turn in zip_longest(*by_class) for index in turn if index is not None][:_TRIES]
    placed = place_thumbnails(
        (points - corner) / scale, order, side=_THUMBNAIL, frame=_SIDE, avoid=(avoid - corner) / scale
    )
    half = scale * _THUMBNAIL / 2
    for index, centre in placed.items():
        x, y = (corner + scale * torch.tensor(centre)).tolist()
        image = thumbnails(index).convert("RGB")
        image.thumbnail((_PIXELS, _PIXELS))
        wide, high = (half * length / max(image.size) for length in image.size)
        place, point, colour = (x - half, y - half), points[index].tolist(), _style(int(labels[index]))["color"]
        axes.plot([x, point[0]], [y, point[1]], color=colour, linewidth=0.8, zorder=1)
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, color="white", zorder=1.5))
        axes.imshow(image, extent=(x - wide, x + wide, y - high, y + high), aspect="auto", zorder=1.6)
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, fill=False, edgecolor=colour, zorder=1.7))
