"""Estimate the expected best of n trials of a study, and plot several studies together."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from proxemic.analysis.drawing import DASHES, class_colour, new_figure
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.plots import write_figure
from proxemic.studies.tuning.directory import tuning_directory

with optional_dependency("train"):
    import yaml

HEADER = ("search", "trials", "full runs", "found", "expected", "low", "high")
RESAMPLES = 1000


def expected_best(
    values: Float[np.ndarray, "*samples trials"], draws: int | None = None
) -> Float[np.ndarray, "*samples draws"]:
    """Compute the expected maximum of n draws with replacement, for n from 1 to ``draws`` (None: all trials).

    ``Σ_i v_(i) ((i/N)^n − ((i−1)/N)^n)`` over the N sorted values (Dodge et al., "Show Your Work", 2019, equation 7).

    >>> expected_best(np.array([1.0, 3.0]), 3)
    array([2.  , 2.5 , 2.75])
    """
    count = values.shape[-1]
    below = (np.arange(count + 1) / count) ** np.arange(1, (draws or count) + 1)[:, None]
    return np.sort(values, axis=-1) @ np.diff(below, axis=1).T


@dataclass(frozen=True)
class SearchCurve:
    """The best value of a study by its number of trials.

    Args:
        name: Name of the study in the plot.
        full_runs: Cost of n trials of average length, in complete trainings of the recipe.
        found: Best value of the first n trials.
        expected: Expected best of n trials drawn from all trials with replacement.
        low: Lower end of the 95% interval of ``expected``, by the bootstrap over trials.
        high: Upper end of the interval.
    """

    name: str
    full_runs: Float[np.ndarray, " trials"]
    found: Float[np.ndarray, " trials"]
    expected: Float[np.ndarray, " trials"]
    low: Float[np.ndarray, " trials"]
    high: Float[np.ndarray, " trials"]

    def rows(self) -> list[list[Any]]:
        """Return a row for each number of trials, with the columns of `HEADER`."""
        columns = (self.full_runs, self.found, self.expected, self.low, self.high)
        return [
            [self.name, n, *row] for n, row in enumerate(zip(*(column.tolist() for column in columns), strict=True), 1)
        ]


def search_curve(directory: str | Path, name: str | None = None) -> SearchCurve:
    """Compute the curve of the study in a directory; `UserError` if the study has no finished trial."""
    folder = tuning_directory(Path(directory))
    options, rows = folder.read(), read_trials(folder.path / "trials.csv")
    base: Mapping[str, Any] = yaml.safe_load((folder.path / "base.yaml").read_text(encoding="utf-8"))
    return curve_of_trials(rows, base["training"]["epochs"], name or options.recipe)


def curve_of_trials(rows: Sequence[Mapping[str, str]], epochs: int, name: str, before: int = 0) -> SearchCurve:
    """Compute the curve of a study.

    A pruned trial counts with its last value, a failed trial with 0. ``expected`` assumes independent draws from the
    trials of this study. A sampler learns from earlier trials instead, so ``expected`` is too high for few trials and
    too low for many; ``found`` follows the actual order.

    Args:
        rows: Rows of ``trials.csv``.
        epochs: Epochs of a complete training of the recipe.
        name: Name of the study in the plot.
        before: Epochs that were spent before these trials.
    """
    spent = np.array([max(1, int(row["epochs"])) for row in rows])
    values = np.array([float(row["value"] or 0) for row in rows])
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(expected_best(drawn, len(values)), (0.025, 0.975), axis=0)
    full_runs = (before + spent.mean() * np.arange(1, len(values) + 1)) / epochs
    found, expected = np.maximum.accumulate(values), expected_best(values)
    return SearchCurve(name, full_runs, found, expected, low, high)


def draw_search_curves(curves: Sequence[SearchCurve], stem: Path, metric: str) -> list[Path]:
    """Write ``STEM.png``, ``STEM.svg`` and ``STEM.csv`` with the curves of studies, and return the paths."""
    figure = new_figure(9, 5.5)
    axes = figure.subplots()
    for place, curve in enumerate(curves):
        color, style = class_colour(place), DASHES[place // 10 % len(DASHES)]
        axes.plot(curve.full_runs, 100 * curve.expected, style, color=color, label=curve.name, linewidth=1.4)
        axes.fill_between(curve.full_runs, 100 * curve.low, 100 * curve.high, color=color, alpha=0.08, linewidth=0)
    axes.set_xlabel("cost of tuning, in complete trainings")
    axes.set_ylabel(f"expected best {metric} on validation classes, percent")
    axes.grid(color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside right upper", fontsize=8)
    return write_figure(figure, stem, HEADER, [row for curve in curves for row in curve.rows()])


def read_trials(file: Path) -> list[dict[str, str]]:
    """Read the rows of a study's ``trials.csv``."""
    if not file.exists():
        raise UserError(f"{file.parent} holds no finished trial: continue tuning first.")
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))
