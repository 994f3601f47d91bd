"""``proxemic analyze trajectories``."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemic.analysis.trajectories import Trajectory
    from proxemic.protocols.runs.finished import Run

__all__ = ["add_parser", "run"]

TESTS = ("recall@1", "nmi")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "trajectories",
        help="what was measured over trainings, such as the distance of embeddings to their proxy (AvgDTP)",
        description="Draw a column of history.csv over the epochs: AvgDTP of the warping paper's figure 9, the gap of "
        "the mean-proxy paper, a metric on held-out classes, the loss. Runs that broke off are drawn and marked.",
        epilog="A recipe has avg_dtp measured by training: {callbacks: [{class_path: "
        "proxemic.training.DistanceToProxy}]}, and the gap by proxemic.training.ProxyGap. Runs of one recipe with "
        "several seeds are a group, with a mean and its 95%% interval.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN", help="a run, finished or not")
    parser.add_argument("--measure", default="avg_dtp", metavar="COLUMN", help="a column of history.csv (%(default)s)")
    parser.add_argument("--log", action="store_true", help="a logarithmic axis")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg and .csv (the first run's folder)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Read, print, draw."""
    from proxemic.analysis.trajectories import plot_trajectories
    from proxemic.cli.show import format_table, print_written
    from proxemic.files import check_stem
    from proxemic.plots import write_figure
    from proxemic.protocols.runs.finished import Run, named_runs
    from proxemic.protocols.runs.groups import repetitions

    first = arguments.run_directories[0]
    out = check_stem(arguments.out or first / arguments.measure.replace("@", "-"))
    runs = [Run(path) for path in named_runs(arguments.run_directories)]
    measure = arguments.measure
    for each in runs:
        _check_measured(each, measure)
    groups = _by_state(repetitions(runs))
    lines = {name: _trajectory(members, measure) for name, members in groups.items()}
    print(f"{measure} before the first epoch, at the last one and at the chosen one; test metrics in percent")
    header = ["run", "epochs", "before", "last", "chosen", "alpha", *TESTS]
    table = [header, *(_row(name, groups[name], lines[name], measure) for name in groups)]
    shown = [column for column in zip(*table, strict=True) if any(column[1:])]
    head, *body = zip(*shown, strict=True)
    print(format_table(head, body))
    if any(line.state == "unstable" for line in lines.values()):
        print("unstable: loss or weights were no longer finite, which ended the training; shown are the epochs before")
    rows = [
        [name, member.path, member.seed, row["epoch"], row[measure]]
        for name, members in groups.items()
        for member in members
        for row in _points([member], measure)[0]
    ]
    figure = plot_trajectories(lines, measure, logarithmic=arguments.log)
    print_written(write_figure(figure, out, ["group", "run", "seed", "epoch", measure], rows))


def _check_measured(run: "Run", measure: str) -> None:
    from proxemic.errors import UserError

    if not run.history:
        raise UserError(f"{run.path} has no epoch yet: let it train one (proxemic train --resume {run.path}).")
    there = [name for name in run.history[0] if name not in ("epoch", "step", "phase", "seconds")]
    if measure not in there:
        callback = {"avg_dtp": "DistanceToProxy"}.get(measure, "ProxyGap" if "gap" in measure else "")
        hint = f"; train with proxemic.training.{callback} among training.callbacks for it" if callback else ""
        raise UserError(f"{run.path} has no {measure} in its history, but {', '.join(there)}{hint}.")


def _by_state(groups: "dict[str, list[Run]]") -> "dict[str, list[Run]]":
    """Each run that broke off by itself: beside it, the finished ones would be cut short."""
    found: dict[str, list[Run]] = {}
    for name, runs in groups.items():
        done = [run for run in runs if run.state == "finished"]
        if done:
            found[name] = done
        for run in runs:
            if run.state != "finished":
                found[name if len(runs) == 1 else f"{name}, seed {run.seed}"] = [run]
    return found


def _trajectory(runs: "Sequence[Run]", measure: str) -> "Trajectory":
    """Of the epochs that all runs of the group have."""
    from proxemic.analysis.trajectories import Trajectory
    from proxemic.protocols.comparison.statistics import t_interval

    points = _points(runs, measure)
    shared = min(points, key=len)
    found = [t_interval([rows[place][measure] for rows in points]) for place in range(len(shared))]
    return Trajectory(
        [row["epoch"] for row in shared],
        [each.mean for each in found],
        [each.half_width or 0.0 for each in found],
        state=runs[0].state,
        expected=_alpha(runs[0]) if measure == "avg_dtp" else None,
    )


def _points(runs: "Sequence[Run]", measure: str) -> list[list[dict[str, float]]]:
    """The rows of each run's history, after what was measured before the first epoch where all have that."""
    if not all(measure in run.measured_before for run in runs):
        return [run.history for run in runs]
    return [[{"epoch": 0.0, measure: run.measured_before[measure]}, *run.history] for run in runs]


def _alpha(run: "Run") -> float | None:
    """Of the warp that the training ended with; None without one."""
    second = run.content.get("second_phase") or {}
    for phase in (second, run.content):
        loss: Any = phase.get("loss") or {}
        if loss.get("init_args", {}).get("alpha") is not None and "Warped" in loss.get("class_path", ""):
            return float(loss["init_args"]["alpha"])
    return None


def _row(name: str, runs: "Sequence[Run]", line: "Trajectory", measure: str) -> list[str]:
    from proxemic.protocols.comparison.statistics import t_interval

    def shown(values: list[float | None], factor: float, form: str) -> str:
        known = [factor * value for value in values if value is not None]
        if not known:
            return ""
        found = t_interval(known)
        width = "" if found.half_width is None else f" ± {found.half_width:{form.replace('.4g', '.2g')}}"
        return f"{found.mean:{form}}{width}"

    ends = [run.metrics or {} for run in runs]
    chosen = [
        next((row[measure] for row in run.history if row["epoch"] == end.get("epoch")), None)
        for run, end in zip(runs, ends, strict=True)
    ]
    tests = {metric: [end.get("test", {}).get(metric) for end in ends] for metric in TESTS}
    state = "" if line.state == "finished" else f" {line.state}"
    return [
        name,
        f"{line.epochs[-1]:.0f}{state}",
        shown([run.measured_before.get(measure) for run in runs], 1, ".4g"),
        shown([run.history[-1][measure] for run in runs], 1, ".4g"),
        shown(chosen, 1, ".4g"),
        "" if line.expected is None else f"{line.expected:g}",
        *(shown(values, 100, ".2f") for values in tests.values()),
    ]
