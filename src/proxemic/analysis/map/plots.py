"""The plot of a map: points and proxies in the colours of their classes, and thumbnails where there is room."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from proxemic.analysis.drawing import add_legend
from proxemic.analysis.map.thumbnails import draw_thumbnails
from proxemic.extras import optional_dependency

# Told apart by colour-blind eyes too (Okabe and Ito); the shapes tell apart classes of one colour.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
SHAPES = ("o", "s", "^", "D")
NAMED_CLASSES = len(COLOURS) * len(SHAPES)
OTHERS = "#b5b5b5"
_SIDE, _LEFT, _BOTTOM, _TOP, _LEGEND = 6.4, 0.75, 0.6, 0.45, 2.4  # inches


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
    """Draw embeddings in two dimensions, both axes in one scale.

    Up to 24 classes have a colour and shape each and are named; of more, colours and shapes repeat, which the plot
    says, and no class is named.

    Args:
        points: Places of the embeddings, at least one.
        labels: Class of each point, from 0 to the number of names - 1.
        class_names: Names of the classes; long ones are cut.
        proxies: Places of proxies, drawn as stars of the class's colour with its shape inside.
        proxy_labels: Class of each, or -1 for one of a class that is not drawn, whose star is grey.
        thumbnails: Function from the number of a point to its PIL image; drawn where they hide nothing.
        axis_names: Names of the axes, with units; None draws no scale, where places mean nothing.
        title: Title of the map.

    Raises:
        ValueError: If the arguments do not fit together.

    >>> from proxemic.analysis.map.projections import principal_components
    >>> embeddings = torch.eye(4)
    >>> places = principal_components(embeddings).project(embeddings)
    >>> len(plot_map(places, torch.tensor([0, 0, 1, 1]), ["cat", "dog"]).axes)
    1
    """
    _check(points, labels, class_names, proxies, proxy_labels)
    with optional_dependency("train"):
        from matplotlib.figure import Figure
    stars = points[:0] if proxies is None else proxies
    star_labels = torch.empty(0, dtype=torch.int64) if proxy_labels is None else proxy_labels
    width, height = _LEFT + _SIDE + _LEGEND, _BOTTOM + _SIDE + _TOP
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((_LEFT / width, _BOTTOM / height, _SIDE / width, _SIDE / height))
    corner, scale = _frame(torch.cat([points, stars]))
    if thumbnails is not None:
        colours = [_colour(label) for label in labels.tolist()]
        draw_thumbnails(axes, points, labels, colours, thumbnails, avoid=stars, corner=corner, side=_SIDE, scale=scale)
    for label in labels.unique().tolist():
        members = points[labels == label]
        axes.plot(*members.T, **_style(label), linestyle="", markersize=5, markeredgewidth=0.4, zorder=3)
    for label in star_labels.unique().tolist():  # those of other classes, -1, first
        places = stars[star_labels == label]
        if label < 0:
            axes.plot(*places.T, "*", color=OTHERS, markersize=8, markeredgecolor="white", zorder=2)
        else:
            axes.plot(*places.T, "*", color=_colour(label), markersize=16, markeredgecolor="black", zorder=4)
            inside = _style(label) | {"color": "white", "markeredgewidth": 0}
            axes.plot(*places.T, **inside, linestyle="", markersize=4.5, zorder=4.1)
    axes.set(xlim=(corner[0], corner[0] + scale * _SIDE), ylim=(corner[1], corner[1] + scale * _SIDE))
    if axis_names is None:
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel("no scale: only who is near whom has a meaning", fontsize=9)
    else:
        axes.set_xlabel(axis_names[0], fontsize=9)
        axes.set_ylabel(axis_names[1], fontsize=9)
        axes.tick_params(labelsize=8)
    axes.spines[:].set_color("#999999")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    _draw_legend(axes, labels, class_names, star_labels)
    return figure


def _frame(places: Float64[Tensor, "places 2"]) -> tuple[tuple[float, float], float]:
    """The lower left corner of a square around all places, and how long an inch is."""
    low, high = places.amin(0), places.amax(0)
    width = (float((high - low).max()) or 1.0) * 1.12
    x, y = ((low + high - width) / 2).tolist()
    return (x, y), width / _SIDE


def _draw_legend(axes: Any, labels: Tensor, class_names: Sequence[str], star_labels: Tensor) -> None:
    with optional_dependency("train"):
        from matplotlib.lines import Line2D
    present: list[int] = labels.unique().tolist()
    named = len(class_names) <= NAMED_CLASSES
    handles = [Line2D([], [], **_style(label), linestyle="", label=_cut(class_names[label])) for label in present]
    handles = handles if named else []
    for label, what in ((0, "proxy of a class"), (-1, "proxy of another class")):
        if bool(((star_labels >= 0) == (label >= 0)).any()):
            colour = OTHERS if label < 0 else "white"
            edge = "white" if label < 0 else "black"
            handles.append(Line2D([], [], color=colour, marker="*", linestyle="", markersize=11, label=what,
                                  markeredgecolor=edge))  # fmt: skip
    title = None if named else f"{len(present)} classes:\ncolours and shapes repeat"
    if handles or title:
        add_legend(
            axes, handles=handles, title=title, title_fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0.0, alignment="left",
        )  # fmt: skip


def _style(label: int) -> dict[str, Any]:
    shape = SHAPES[label // len(COLOURS) % len(SHAPES)]
    return {"color": _colour(label), "marker": shape, "markeredgecolor": "white"}


def _colour(label: int) -> str:
    return OTHERS if label < 0 else COLOURS[label % len(COLOURS)]


def _cut(name: str) -> str:
    # An underscore in front would hide it from matplotlib's legend.
    name = f" {name}" if name.startswith("_") else name
    return name if len(name) <= 26 else f"{name[:25]}…"


def _check(
    points: Tensor, labels: Tensor, class_names: Sequence[str], proxies: Tensor | None, proxy_labels: Tensor | None
) -> None:
    if len(points) == 0 or len(labels) != len(points):
        raise ValueError(
            f"points has {len(points)} rows and labels {len(labels)}, but each point, one or more, has one."
        )
    counts = [None if given is None else len(given) for given in (proxies, proxy_labels)]
    if counts[0] != counts[1]:
        raise ValueError("proxies and proxy_labels do not fit together: give both, one label per proxy, or none.")
    everyone = labels if proxy_labels is None else torch.cat([labels, proxy_labels])
    if labels.min() < 0 or everyone.min() < -1 or everyone.max() >= len(class_names):
        raise ValueError(
            f"labels and proxy_labels must be from 0 to {len(class_names) - 1}, numbers of class_names, or -1 for a "
            "proxy of another class."
        )
