"""Draw measures over the epochs of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from proxemic.analysis.trajectories import Trajectory, plot_trajectories
from proxemic.analyze.results import Analysis, PathLike, Stem, file_stem
from proxemic.errors import UserError
from proxemic.plots import write_figure
from proxemic.recipes.flags import merge
from proxemic.studies.finished import Run, named_runs
from proxemic.studies.groups import repetitions
from proxemic.studies.statistics import format_estimate, t_interval
from proxemic.tables import Table

TESTS = ("recall@1", "nmi")


def trajectories(
    runs: Sequence[PathLike], *, measure: str = "avg_dtp", log: bool = False, out: Stem | None = None
) -> Analysis[Mapping[str, Trajectory]]:
    """Draw a column of ``history.csv`` over the epochs; runs of one recipe with several seeds form a group.

    Columns are the average distance to the proxy (warping paper, figure 9), the gap of the mean-proxy paper, metrics on
    held-out classes, and the loss. The callback proxemic.training.DistanceToProxy in training.callbacks measures
    avg_dtp, and proxemic.training.ProxyGap measures the gap.

    Args:
        runs: Finished or unfinished runs; unfinished runs are drawn by themselves and marked.
        measure: Name of the column.
        log: Draw a logarithmic axis.
        out: Prefix of the file names; ``RUN/MEASURE`` by default.

    Returns:
        The measure over the epochs, by group of runs.
    """
    stem = file_stem(out, runs, measure.replace("@", "-"))
    opened = [Run(path) for path in named_runs([Path(run) for run in runs])]
    for run in opened:
        _check_measured(run, measure)
    groups = _by_state(repetitions(opened))
    lines = {name: _trajectory(members, measure) for name, members in groups.items()}
    header = ["run", "epochs", "before", "last", "chosen", "alpha", *TESTS]
    cells = [header, *(_row(name, groups[name], lines[name], measure) for name in groups)]
    shown = [column for column in zip(*cells, strict=True) if any(column[1:])]
    head, *body = zip(*shown, strict=True)
    title = f"{measure} before the first epoch, at the last and at the selected epoch; test metrics in percent"
    unstable = "unstable: the training ended when loss or weights became infinite or NaN; earlier epochs are shown"
    notes = [unstable] if any(line.state == "unstable" for line in lines.values()) else []
    rows = [
        [name, run.path, run.seed, row["epoch"], row[measure]]
        for name, members in groups.items()
        for run in members
        for row in _points([run], measure)[0]
    ]
    figure = plot_trajectories(lines, measure, logarithmic=log)
    written = write_figure(figure, stem, ["group", "run", "seed", "epoch", measure], rows)
    return Analysis(summary=[Table(head, body, title, notes)], written=written, figures=lines)


def _check_measured(run: Run, measure: str) -> None:
    if not run.history:
        raise UserError(f"{run.path} has no epoch yet: let it train one (proxemic train --resume {run.path}).")
    columns = [name for name in run.history[0] if name not in ("epoch", "step", "phase", "seconds")]
    if measure not in columns:
        callback = {"avg_dtp": "DistanceToProxy"}.get(measure, "ProxyGap" if "gap" in measure else "")
        hint = f"; train with proxemic.training.{callback} among training.callbacks for it" if callback else ""
        raise UserError(f"{run.path} has no {measure} in its history, but {', '.join(columns)}{hint}.")


def _by_state(groups: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """Group finished runs, and keep unfinished runs apart, because a group ends with its shortest run."""
    by_state: dict[str, list[Run]] = {}
    for name, runs in groups.items():
        for run in sorted(runs, key=lambda run: run.state != "finished"):
            alone = run.state != "finished" and len(runs) > 1
            by_state.setdefault(f"{name}, seed {run.seed}" if alone else name, []).append(run)
    return by_state


def _trajectory(runs: Sequence[Run], measure: str) -> Trajectory:
    """Average a measure over the runs of a group, with its interval, over the epochs that all runs have."""
    points = _points(runs, measure)
    shared = min(points, key=len)
    estimates = [t_interval([rows[place][measure] for rows in points]) for place in range(len(shared))]
    return Trajectory(
        [row["epoch"] for row in shared],
        [estimate.mean for estimate in estimates],
        [estimate.half_width or 0.0 for estimate in estimates],
        state=runs[0].state,
        expected=_alpha(runs[0]) if measure == "avg_dtp" else None,
    )


def _points(runs: Sequence[Run], measure: str) -> list[list[dict[str, float]]]:
    """Return the history of each run, with the values before the first epoch if all runs have them."""
    if not all(measure in run.measured_before for run in runs):
        return [run.history for run in runs]
    return [[{"epoch": 0.0, measure: run.measured_before[measure]}, *run.history] for run in runs]


def _alpha(run: Run) -> float | None:
    """Return the alpha of the warp in the last phase, or None without a warp."""
    second = run.content["second_phase"] or {}
    loss = merge(run.content["loss"], second.get("loss", {}))  # a second phase holds changes alone
    if not isinstance(loss, Mapping) or "Warped" not in loss["class_path"]:
        return None
    return loss.get("init_args", {}).get("alpha")


def _row(name: str, runs: Sequence[Run], line: Trajectory, measure: str) -> list[str]:
    def shown(values: Sequence[float | None], form: str = ".4g", width: str = ".2g", factor: float = 1) -> str:
        known = [value for value in values if value is not None]
        return format_estimate(t_interval(known), factor, form, width) if known else ""

    ends = [run.metrics or {} for run in runs]
    chosen = [
        next((row[measure] for row in _points([run], measure)[0] if row["epoch"] == end.get("epoch")), None)
        for run, end in zip(runs, ends, strict=True)
    ]
    state = "" if line.state == "finished" else f" {line.state}"
    return [
        name,
        f"{line.epochs[-1]:.0f}{state}",
        shown([run.measured_before.get(measure) for run in runs]),
        shown([run.history[-1][measure] for run in runs]),
        shown(chosen),
        "" if line.expected is None else f"{line.expected:g}",
        *(shown([end.get("test", {}).get(metric) for end in ends], ".2f", ".2f", 100) for metric in TESTS),
    ]
