"""The style that the plots of this room share. Matplotlib is imported with the first of them, as tensors need none."""

from typing import Any

from proxemic.extras import optional_dependency


def new_figure(width: float | int, height: float | int) -> Any:
    """Make a figure of this size in inches, whose parts make room for each other.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """
    with optional_dependency("train"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def add_legend(owner: Any, **options: Any) -> None:
    """Add a legend without a frame to axes or a figure; a ``$`` in the name of a run or a class is no formula."""
    for text in owner.legend(**{"fontsize": 8, "frameon": False} | options).get_texts():
        text.set_parse_math(False)


def hide_spines(*panels: Any) -> None:
    """Leave out the frame to the right of the axes and above them."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)


def integer_ticks(axis: Any) -> None:
    """Put ticks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def class_colour(label: int) -> Any:
    """The colour of a class, one of ten."""
    from matplotlib import colormaps

    return colormaps["tab10"](label % 10)
