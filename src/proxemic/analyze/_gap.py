"""Measure the gap between proxies and the minima of the softmax loss."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxemic.analysis.gap import (
    class_directions,
    class_minimizers,
    gap_bounds,
    plot_gaps,
    plot_three_proxies,
    softmax_form,
    three_proxies,
)
from proxemic.analyze.results import Analysis, PathLike, Stem, file_stem, seed_table
from proxemic.errors import UserError
from proxemic.losses.scores.similarity import unit
from proxemic.losses.user_defined import Loss
from proxemic.plots import write_figure
from proxemic.studies.statistics import Estimate, t_interval

if TYPE_CHECKING:
    from proxemic.studies.finished import FinishedRun

MEASURES = {
    "gap_at_scale": "mean squared gap at the loss's scale",
    "gap": "mean squared gap at σ = 1",
    "lower": "L, corrected (C⁻⁵)",
    "lower_sharp": "L, sharpened (C⁻⁴)",
    "lower_printed": "L, printed (C⁻³)",
    "upper": "U, of the proof (2/√e)",
    "upper_printed": "U, printed (√(2/e))",
    "upper_holds": "fraction of classes for which both U are proved",
    "upper_always": "U of all classes (2 − 2W)",
    "mean_proxy_norm": "norm of the mean proxy",
    "to_proxy": "squared distance, class mean to proxy",
    "to_minimizer": "squared distance, class mean to minimiser",
}
STATES = ("trained", "untrained")
CLASS_COLUMNS = ("gap", "gap_at_scale", "to_proxy", "to_minimizer")


@dataclass(frozen=True, kw_only=True, eq=False)
class GapFigures:
    """Gaps and bounds.

    ``measures`` holds means over the seeds of a group with the keys of `MEASURES`, by name of the group and ``trained``
    or ``untrained``. ``differences`` from the first group are paired by seed. Without runs, ``minimum`` is the angle in
    radians where the loss of the first of the three proxies is smallest.
    """

    measures: Mapping[tuple[str, str], Mapping[str, Estimate]]
    differences: Mapping[str, Mapping[str, Estimate]]
    minimum: float = math.nan


def gap(
    runs: Sequence[PathLike] = (), *, images: bool = True, epsilon: float = 0.1, out: Stem | None = None
) -> Analysis[GapFigures]:
    """Find the minimum of each class's softmax loss, and compare its gap with the bounds of the mean-proxy paper.

    The bounds L(W) and U(W) are computed as printed and as proved, for trained runs and for the same losses before
    training. Runs of one recipe with several seeds form a group, with means and 95% intervals. Gaps are squared
    distances between unit vectors, from 0 to 4.

    Args:
        runs: Finished runs of softmax losses; without runs, the paper's example of three proxies is drawn.
        images: Also measure the mean direction of the training images of each class.
        epsilon: Angle in radians between two of the three proxies.
        out: Prefix of the file names; ``RUN/gap``, or ``three-proxies`` by default.
    """
    stem = file_stem(out, runs, "gap" if runs else "three-proxies")
    return _of_runs(runs, stem, images=images) if runs else _of_three_proxies(epsilon, stem)


def _of_three_proxies(epsilon: float, stem: Path) -> Analysis[GapFigures]:
    if not 0 < epsilon < math.pi / 2:
        raise ValueError(f"epsilon is {epsilon}, but must be an angle between 0 and π/2 radians, such as 0.1.")
    x, y = class_minimizers(three_proxies(epsilon))[0].tolist()
    angle = math.atan2(y, x)
    figure, curve = plot_three_proxies(epsilon)
    sentence = (
        f"Proxies at 0, {epsilon:g} and -1.5708 radians: the loss of class 1 is smallest at {angle:.4f} radians, "
        f"{angle:.4f} from its target proxy and {abs(angle - epsilon):.4f} from the second."
    )
    written = write_figure(figure, stem, ["angle", "loss"], curve)
    return Analysis(figures=GapFigures(measures={}, differences={}, minimum=angle), summary=[sentence], written=written)


def _of_runs(paths: Sequence[PathLike], stem: Path, *, images: bool) -> Analysis[GapFigures]:
    from proxemic.studies.finished import find_runs
    from proxemic.studies.groups import differences_from_first, repetitions

    runs = find_runs([Path(path) for path in paths])
    for run in runs:
        try:
            softmax_form(run.loss)
        except ValueError as error:
            raise UserError(f"{run.path}: {error}") from None
    groups = repetitions(runs)
    values: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    rows: list[list[Any]] = []
    members = [(name, run) for name, runs in groups.items() for run in runs]
    for (name, run), state in product(members, STATES):
        trained = state == "trained"
        loss = run.loss if trained else run.untrained_loss()
        means, classes = _measure(loss, run if images and trained else None)
        values[name, state].append(means)
        gaps[f"{name}, {state}"] += classes["gap_at_scale"]
        cells = zip(*(classes.get(key, [None] * len(classes["gap"])) for key in CLASS_COLUMNS), strict=True)
        rows += [[run.path, state, number, *row] for number, row in enumerate(cells)]
    measures = {
        column: {key: t_interval([seed[key] for seed in seeds]) for key in seeds[0]} for column, seeds in values.items()
    }
    differences = differences_from_first(groups, {name: values[name, "trained"] for name in groups})
    tables = [
        seed_table(
            name if len(members) == 1 else f"{name}: mean and 95% interval over {len(members)} seeds",
            {state: measures[name, state] for state in STATES},
            MEASURES,
            width=".2g",
        )
        for name, members in groups.items()
    ]
    tables += [
        seed_table(title, {"difference": estimates}, MEASURES, width=".2g") for title, estimates in differences.items()
    ]
    bounds = {
        ", ".join(column): {key: estimate.mean for key, estimate in estimates.items()}
        for column, estimates in measures.items()
    }
    written = write_figure(plot_gaps(gaps, bounds), stem, ["run", "state", "class", *CLASS_COLUMNS], rows)
    return Analysis(figures=GapFigures(measures=measures, differences=differences), summary=tables, written=written)


def _measure(loss: Loss, images_of: "FinishedRun | None") -> tuple[dict[str, float], dict[str, list[float]]]:
    """Measure the gap of each class; return means over classes, and values per class."""
    proxies, scale = softmax_form(loss)
    target = unit(proxies.double())
    at_one, at_scale = class_minimizers(proxies), class_minimizers(proxies, scale=scale)
    classes = {"gap": (at_one - target).square().sum(1), "gap_at_scale": (at_scale - target).square().sum(1)}
    if images_of is not None:
        train = images_of.train
        means = class_directions(images_of.embed(train), train.labels)
        classes["to_proxy"] = (means - target).square().sum(1)
        classes["to_minimizer"] = (means - at_scale).square().sum(1)
    values = {key: float(per_class.mean()) for key, per_class in classes.items()} | asdict(gap_bounds(proxies))
    values["upper_holds"] = float((at_one @ target.mean(0) >= 0).double().mean())
    return values, {key: per_class.tolist() for key, per_class in classes.items()}
