"""Plot the importance of the hyper-parameters of a search, and the value of each trial over each parameter."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from proxemic.analysis.drawing import new_figure
from proxemic.extras import optional_dependency
from proxemic.plots import save_figure
from proxemic.studies.tuning.search import FinishedTrial, quiet
from proxemic.studies.tuning.spaces import Choices, Range

with optional_dependency("tune"):
    import optuna


def draw_importance(studies: Sequence[optuna.Study], folder: Path) -> None:
    """Write ``importance.png``, the importance of each parameter by stage."""
    shares = [_importances(study) for study in studies]
    heights = [0.9 + 0.28 * max(1, len(share)) for share in shares]
    figure = new_figure(7, sum(heights))
    rows = figure.subplots(len(studies), 1, squeeze=False, height_ratios=heights)
    for number, (axes, share) in enumerate(zip(rows[:, 0], shares, strict=True), 1):
        names = list(share)[::-1]
        axes.barh(range(len(names)), [share[name] for name in names], color="#4477aa")
        axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
        axes.set_xlim(0, 1)
        axes.set_title(_stage("Importance (PED-ANOVA)", number, len(studies)), fontsize=9)
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


def draw_slices(
    stages: Sequence[Sequence[FinishedTrial]],
    dimensions: Sequence[Mapping[str, Range | Choices]],
    metric: str,
    folder: Path,
) -> None:
    """Write ``slices.png``, the value of every complete trial over each parameter; later trials are darker."""
    columns = max(map(len, dimensions))
    figure = new_figure(1 + 2.2 * columns, 2.4 * len(stages) + 0.4)
    rows = figure.subplots(len(stages), columns, squeeze=False, sharey="row")
    for number, (row, trials, known) in enumerate(zip(rows, stages, dimensions, strict=True), 1):
        complete = [trial for trial in trials if trial.state == "complete"]
        for axes, name in zip(row, known, strict=False):
            _slice(axes, name, known[name], complete)
        for axes in row[len(known) :]:
            axes.set_visible(False)
        row[0].set_ylabel(_stage(metric, number, len(stages)), fontsize=8)
    figure.supxlabel("the largest is marked; all on validation classes", fontsize=8)
    save_figure(figure, folder / "slices.png")


def _slice(axes: Axes, name: str, dimension: Range | Choices, complete: Sequence[FinishedTrial]) -> None:
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
    axes.set_xlabel(name, fontsize=8, parse_math=False)
    axes.tick_params(labelsize=7)


def _stage(text: str, number: int, count: int) -> str:
    return f"{text}, stage {number}" if count > 1 else text
