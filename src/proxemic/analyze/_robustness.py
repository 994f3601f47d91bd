"""Evaluate runs on corrupted test images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from proxemic.analysis.robustness import Robustness, plot_robustness
from proxemic.analyze.results import Analysis, PathLike, Stem, file_stem, seed_table
from proxemic.data.corruptions import CORRUPTIONS, Corruption
from proxemic.errors import UserError
from proxemic.plots import write_figure
from proxemic.studies.corrupted import check_metric, check_same_test, measure_corrupted, robustness_against_paper
from proxemic.studies.finished import FinishedRun, find_runs
from proxemic.studies.groups import differences_from_first, repetitions
from proxemic.studies.statistics import Estimate, t_interval

HUE = "hue-and-saturation"


@dataclass(frozen=True, kw_only=True, eq=False)
class RobustnessFigures:
    """A metric under corruptions by group of runs that differ only in their seed, and differences paired by seed."""

    groups: Mapping[str, Robustness]
    differences: Mapping[str, Mapping[str, Estimate]]


def robustness(
    runs: Sequence[PathLike],
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    metric: str = "recall@1",
    seed: int = 0,
    against: Literal["paper"] | None = None,
    out: Stem | None = None,
) -> Analysis[RobustnessFigures]:
    """Evaluate finished runs on their test images under noise, dropped pixels, distortions and blur.

    Runs with the same image size see the same corrupted images. Runs that differ only in their seed form a group, with
    a 95% interval of the mean. Grey images have no hue, so that this corruption is left out.

    Args:
        runs: Finished runs, evaluated on the same test images.
        corruptions: Names of `proxemic.data.CORRUPTIONS`; None takes all.
        severities: Levels from 1 (mild) to 5 (strong); the paper used about 3.
        metric: A metric that the evaluation of all runs computes.
        seed: Seed of the corruptions.
        against: Also show the paper's figures (Table IV), and the differences in protocol.
        out: Prefix of the file names; ``RUN/robustness`` by default.

    Source: Table IV of the warping paper.
    """
    stem = file_stem(out, runs, "robustness")
    if not (severities and set(severities) <= set(range(1, 6))):
        levels = ",".join(str(severity) for severity in severities)
        raise UserError(f"severities is {levels!r}, but must be levels from 1 (mild) to 5 (strong), such as 1,3,5.")
    names, severities = list(CORRUPTIONS if corruptions is None else dict.fromkeys(corruptions)), sorted({*severities})
    for name in names:
        if name not in CORRUPTIONS:
            raise UserError(f"corruptions has {name!r}, but the corruptions are: {', '.join(CORRUPTIONS)}.")
    opened = find_runs([Path(run) for run in runs])
    if vectors := next((run for run in opened if run.recipe.model.takes_vectors), None):
        raise UserError(f"{vectors.path} takes vectors, but only images can be corrupted: give runs that take images.")
    groups = repetitions(opened)
    check_same_test(opened)
    check_metric(opened, metric)
    names, notes = _without_hue_of_grey(names, opened)
    made = [Corruption(name, severity, seed) for name in names for severity in severities]
    # Report a missing library or a too small image before the work.
    size = min(run.recipe.images.size for run in opened)
    for corruption in made:
        corruption(torch.zeros(3, size, size), 0)
    values = measure_corrupted(opened, made, metric)
    measured = {}
    for name, members in groups.items():
        per_run = torch.tensor([values[run.path] for run in members], dtype=torch.float64)
        measured[name] = Robustness(per_run[:, 0], per_run[:, 1:].unflatten(1, (len(names), len(severities))))
    differences = differences_from_first(groups, {name: _by_run(group, names) for name, group in measured.items()})
    title = f"{metric} in percent, mean over severities {', '.join(map(str, severities))}"
    if any(len(group.clean) > 1 for group in measured.values()):
        title += " ± half of the 95% interval over seeds (t distribution)"
    columns = {
        name: {label: t_interval(column) for label, column in _values(group, names).items()}
        for name, group in measured.items()
    }
    summary = [*notes, seed_table(title, columns, form=".1f", factor=100)]
    for title, estimates in differences.items():
        column = {"difference": estimates}
        summary.append(seed_table(f"{title}, in percent", column, form="+.1f", width=".1f", factor=100))
    if against:
        summary.append(_against_paper(groups, measured, names, severities, metric))
    several = {name: group.curves for name, group in measured.items() if len(group.clean) > 1}
    figure = plot_robustness(
        {name: group.curves.mean(0) for name, group in measured.items()},
        {name: _half_widths(curves) for name, curves in several.items()},
        corruptions=names,
        severities=severities,
        metric=metric,
    )
    settings = [("none", 0), *((corruption.name, corruption.severity) for corruption in made)]
    rows = [
        (run.path, name, run.seed, *setting, metric, value)
        for name, members in groups.items()
        for run in members
        for setting, value in zip(settings, values[run.path], strict=True)
    ]
    header = ("run", "group", "seed", "corruption", "severity", "metric", "value")
    figures = RobustnessFigures(groups=measured, differences=differences)
    return Analysis(figures=figures, summary=summary, written=write_figure(figure, stem, header, rows))


def _without_hue_of_grey(names: list[str], runs: Sequence[FinishedRun]) -> tuple[list[str], list[str]]:
    """Drop the corruption of hue if a run sees grey images; return the remaining names, and notes."""
    grey = next((run for run in runs if run.recipe.images.channels == 1), None)
    if grey is None or HUE not in names:
        return names, []
    if names == [HUE]:
        raise UserError(f"{grey.path} sees grey images, which have no {HUE}: give other corruptions.")
    return [name for name in names if name != HUE], [f"{HUE} is left out: {grey.path} sees grey images."]


def _by_run(group: Robustness, names: list[str]) -> list[dict[str, float]]:
    """Return a mapping from row labels of the table to values for each run."""
    by_label = _values(group, names)
    return [dict(zip(by_label, row, strict=True)) for row in zip(*by_label.values(), strict=True)]


def _against_paper(
    groups: Mapping[str, Sequence[FinishedRun]],
    measured: Mapping[str, Robustness],
    names: list[str],
    severities: list[int],
    metric: str,
) -> str:
    # The paper has one severity, about our third.
    place = severities.index(3) if 3 in severities else slice(None)
    of = "severity 3" if 3 in severities else f"severities {', '.join(map(str, severities))}"
    values = {}
    for title, group in measured.items():
        corrupted = group.values[:, :, place].reshape(len(group.clean), len(names), -1).mean(2)
        values[title] = {"none": group.clean.tolist(), **dict(zip(names, corrupted.T.tolist(), strict=True))}
    return robustness_against_paper({title: runs[0].content for title, runs in groups.items()}, values, metric, of)


def _values(group: Robustness, names: list[str]) -> dict[str, list[float]]:
    """Return the values per run for each row label of the table."""
    over = group.over_severities
    ends = {"mean of these": over.mean(1).tolist(), "relative drop": group.relative_drop.mean(1).tolist()}
    return {"none": group.clean.tolist(), **dict(zip(names, over.T.tolist(), strict=True)), **ends}


def _half_widths(curves: Tensor) -> Tensor:
    """Compute the half-widths of the intervals over the runs, the first dimension."""
    half = [t_interval(values.tolist()).half_width for values in curves.flatten(1).T]
    return torch.tensor(half, dtype=torch.float64).view(curves.shape[1:])
