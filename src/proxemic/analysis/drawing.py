"""The common style of plots. Matplotlib is imported when the first figure is made."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from proxemic.extras import optional_dependency

DASHES = ("-", "--", ":", "-.")


def new_figure(width: float | int, height: float | int) -> Any:
    """Make a figure of a size in inches, with Matplotlib's constrained layout."""
    with optional_dependency("train"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def add_legend(owner: Any, styles: Iterable[tuple[str, Mapping[str, Any]]] | None = None, **options: Any) -> None:
    """Add a frameless legend of the owner's lines, or of labels with styles; labels are never parsed as formulas."""
    from matplotlib.lines import Line2D

    if styles is not None:
        options["handles"] = [Line2D([], [], **style, label=label) for label, style in styles]
    for text in owner.legend(**{"fontsize": 8, "frameon": False} | options).get_texts():
        text.set_parse_math(False)


def hide_frame(axes: Any, *, grid: str | None = None) -> None:
    """Hide the top and right side of the frame, and draw a grid behind the lines if one is given."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)


def draw_circle(axes: Any, centre: Sequence[float], radius: float, style: str = "-", **options: Any) -> None:
    """Draw a circle as a line, so that it can appear in the legend."""
    turn = torch.linspace(0, 2 * math.pi, 181)
    axes.plot(centre[0] + radius * turn.cos(), centre[1] + radius * turn.sin(), style, **options)


def integer_ticks(axis: Any) -> None:
    """Put ticks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def class_colour(label: int) -> Any:
    """Return the colour of a class, one of ten."""
    from matplotlib import colormaps

    return colormaps["tab10"](label % 10)
