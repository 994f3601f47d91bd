"""Plots of landscapes: the loss of one embedding around the proxy of its class."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.drawing import add_legend, draw_circle, new_figure
from proxemic.analysis.landscape.minimum import Minimum
from proxemic.analysis.landscape.potential import Landscape, WarpPotential
from proxemic.losses.checks import check_positive

MARK = "#d55e00"
_LEVELS = 20


@torch.no_grad()
def landscape_grid(
    landscape: Landscape, half_width: float, *, points: int = 101
) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"], Float[Tensor, "points points"]]:
    """The loss on a square grid around the own proxy: the x, the y, and the values, one row per y.

    >>> x, y, values = landscape_grid(Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]])), 2.0, points=3)
    >>> x.tolist(), values[1, 2]
    ([-2.0, 0.0, 2.0], tensor(0.6931, dtype=torch.float64))
    """
    step = 2 * check_positive("half_width", half_width) / (points - 1)
    line = step * (torch.arange(points, dtype=torch.float64) - (points - 1) / 2)  # 0 in the middle, to the last bit
    x, y = landscape.target.double()[:2, None] + line
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    values = landscape(torch.stack((columns, rows), 2).flatten(0, 1))
    return x, y, values.unflatten(0, (points, points))


def plot_landscape(
    landscape: Landscape, half_width: float, *, minimum: Minimum | None = None, title: str = "", axes: Any = None
) -> Any:
    """Draw the loss around the own proxy in twenty steps of colour, each a twentieth of the square.

    The own proxy is a star, and others in the plane are crosses. A diamond marks the minimum, or an arrow its direction
    where it runs away. Around the own proxy of a `WarpPotential` a dashed circle has the radius α.

    Args:
        landscape: A landscape in two dimensions.
        half_width: Half the width of the square around the own proxy.
        minimum: The minimum that `find_minimum` returns.
        title: Title of the plot.
        axes: Matplotlib axes to draw on; None makes a new figure.

    Raises:
        ValueError: If an argument is not allowed.

    >>> axes = plot_landscape(Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]])), 6.0, title="no warp")
    >>> axes.get_title(), axes.get_xlim() == (-6, 6)
    ('no warp', True)
    """
    axes = new_figure(4.6, 4).subplots() if axes is None else axes
    from matplotlib.colors import BoundaryNorm

    x, y, values = (part.numpy() for part in landscape_grid(landscape, half_width))
    levels = np.unique(np.quantile(values, np.linspace(0, 1, _LEVELS + 1))).tolist()
    if len(levels) < 3:  # of a level landscape
        levels = [levels[0] - 0.5, levels[0], levels[-1] + 0.5]
    norm = BoundaryNorm(levels, 256)
    filled = axes.contourf(x, y, values, levels=levels, cmap="viridis", norm=norm)
    axes.contour(x, y, values, levels=levels[1:-1], colors="white", linewidths=0.3, alpha=0.6)
    bar = axes.figure.colorbar(filled, ax=axes, shrink=0.85, ticks=levels[:: max(1, len(levels) // 6)])
    bar.ax.set_yticklabels([f"{level:.2g}" for level in bar.get_ticks()], fontsize=7)
    bar.ax.minorticks_off()
    target = landscape.target.tolist()
    if isinstance(landscape.f1, WarpPotential):
        draw_circle(axes, target, landscape.f1.alpha, "--", color="white", linewidth=1.2, label="distance α")
    axes.plot(*target, "*", color="black", markersize=13, markeredgecolor="white", label="own proxy")
    axes.plot(*landscape.in_plane.T, "X", color="black", markersize=9, markeredgecolor="white", label="other proxy")
    if minimum is not None:
        _mark(axes, target, minimum, half_width)
    (left, right), (low, high) = ((place - half_width, place + half_width) for place in target)
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(labelsize=7)
    return axes


def draw_landscapes(
    landscapes: Mapping[str, Landscape], minima: Mapping[str, Minimum], half_width: float, *, columns: int = 2
) -> Any:
    """A figure of several landscapes by their titles, beside each other, with one legend.

    >>> from proxemic.analysis import find_minimum
    >>> landscape = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]))
    >>> figure = draw_landscapes({"no warp": landscape}, {"no warp": find_minimum(landscape)}, 6.0)
    >>> figure.axes[0].get_title()
    'no warp'
    """
    columns = min(columns, len(landscapes))
    rows = math.ceil(len(landscapes) / columns)
    figure = new_figure(max(5.4, 4.3 * columns), 3.5 * rows + 0.8)
    panels = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axes in panels.flat[len(landscapes) :]:
        axes.set_visible(False)
    for axes, (title, landscape) in zip(panels.flat, landscapes.items(), strict=False):
        plot_landscape(landscape, half_width, minimum=minima[title], title=title, axes=axes)
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.supxlabel("place of the embedding, in units of distance\ncolour: its loss, equal areas a step", fontsize=8)
    add_legend(
        figure, handles=[*handles.values()], loc="outside upper center", ncols=3 * min(columns, 2), frameon=True,
        edgecolor="none", facecolor="#bbbbbb", framealpha=1,
    )  # fmt: skip
    return figure


def _mark(axes: Any, target: list[float], minimum: Minimum, half_width: float) -> None:
    if not minimum.runs_away:
        label = "minimum (nearest of equals)" if minimum.flat else "minimum"
        axes.plot(*minimum.place, "D", color=MARK, markersize=6, markeredgecolor="white", label=label)
        return
    away = [(place - start) / minimum.distance for place, start in zip(minimum.place, target, strict=True)]
    start, end = ([target[axis] + share * half_width * away[axis] for axis in (0, 1)] for share in (0.55, 0.92))
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": MARK, "linewidth": 2.5})
    axes.plot([], [], color=MARK, linewidth=2.5, marker=">", label="minimum at infinity")
