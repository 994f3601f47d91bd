"""Plot the importance of the tuned hyper-parameters, and the value of each trial over each parameter."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from proxemic.analysis.drawing import new_figure
from proxemic.extras import optional_dependency
from proxemic.plots import save_figure
from proxemic.studies.tuning.spaces import Choices, Dimension, Factor
from proxemic.studies.tuning.study import FinishedTrial, quiet

with optional_dependency("tune"):
    import optuna


def draw_importance(study: optuna.Study, folder: Path) -> None:
    """Write ``importance.png``, the importance of each parameter."""
    shares = _importances(study)
    names = list(shares)[::-1]
    figure = new_figure(7, 0.9 + 0.28 * max(1, len(names)))
    axes = figure.subplots()
    axes.barh(range(len(names)), [shares[name] for name in names], color="#4477aa")
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_xlim(0, 1)
    axes.set_title("Importance (PED-ANOVA)", fontsize=9)
    if not names:
        axes.text(0.5, 0.5, "too few trials that differ", ha="center", transform=axes.transAxes)
    save_figure(figure, folder / "importance.png")


def _importances(study: optuna.Study) -> dict[str, float]:
    """Compute the importance of each parameter by PED-ANOVA, largest first; {} if trials are too few or equal."""
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(study)
    except (RuntimeError, ValueError):
        return {}


def draw_slices(trials: Sequence[FinishedTrial], space: Mapping[str, Dimension], metric: str, folder: Path) -> None:
    """Write ``slices.png``, the value of every complete trial over each parameter; later trials are darker."""
    complete = [trial for trial in trials if trial.state == "complete"]
    columns = min(7, len(space))
    rows = -(-len(space) // columns)
    figure = new_figure(1 + 2.2 * columns, 2.4 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, name in zip_longest(grid.flat, space):
        if name is None:
            axes.set_visible(False)
        else:
            _slice(axes, name, space[name], complete)
    for row in grid:
        row[0].set_ylabel(metric, fontsize=8)
    figure.supxlabel("the largest is marked; all on validation classes", fontsize=8)
    save_figure(figure, folder / "slices.png")


def _slice(axes: Axes, name: str, dimension: Dimension, complete: Sequence[FinishedTrial]) -> None:
    places = [item.parameters[name] for item in complete]
    if isinstance(dimension, Choices):
        places = [dimension.choices.index(place) for place in places]
        axes.set_xticks(range(len(dimension.choices)), [str(choice) for choice in dimension.choices], parse_math=False)
        axes.set_xlim(-0.5, len(dimension.choices) - 0.5)
    elif dimension.log:
        low, high = dimension.low, dimension.high
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high < 100 * low else (1,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        space = (high / low) ** 0.05
        axes.set_xlim(low / space, high * space)
    else:
        space = 0.05 * (dimension.high - dimension.low) or 1
        axes.set_xlim(dimension.low - space, dimension.high + space)
    values = [item.value or 0.0 for item in complete]
    order = [item.number for item in complete]
    axes.scatter(places, values, c=order, cmap="Blues", vmin=min(order) - max(order) / 2 - 1, s=18)
    best = max(range(len(values)), key=values.__getitem__)
    axes.scatter(places[best], values[best], marker="*", s=90, color="#d7191c")
    label = f"{name}, factor" if isinstance(dimension, Factor) else name
    axes.set_xlabel(label, fontsize=8, parse_math=False)
    axes.tick_params(labelsize=7)
