"""``proxemic analyze gap``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemic.losses.own import Loss
    from proxemic.protocols.runs.finished import FinishedRun

__all__ = ["add_parser", "run"]

MEASURES = {
    "gap_at_scale": "mean squared gap at the loss's scale",
    "gap": "mean squared gap at σ = 1",
    "lower": "L, corrected (C⁻⁵)",
    "lower_sharp": "L, sharpened (C⁻⁴)",
    "lower_printed": "L, printed (C⁻³)",
    "upper": "U, of the proof (2/√e)",
    "upper_printed": "U, printed (√(2/e))",
    "upper_holds": "classes that both U are proved for",
    "upper_always": "U of all classes (2 − 2W)",
    "mean_proxy_norm": "norm of the mean proxy",
    "to_proxy": "squared distance, class mean to proxy",
    "to_minimizer": "squared distance, class mean to minimiser",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "gap",
        help="how far the softmax loss wants embeddings from their proxies, with the bounds of the mean-proxy paper",
        description="Where the softmax loss of each class is least, how far that is from the class's proxy, and the "
        "bounds L(W) and U(W) of the mean-proxy paper, as printed and as they are proved; for trained runs and for the "
        "same losses untrained. Without a run: the paper's example of three proxies.",
        epilog="Runs of one recipe with several seeds are a group, with a mean and its 95%% interval. The gaps are "
        "squared distances between unit vectors, 0 to 4.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directories", type=Path, nargs="*", metavar="RUN", help="a finished run of a softmax loss")
    parser.add_argument("--no-images", action="store_true", help="leave out where the training images lie")
    parser.add_argument(
        "--epsilon", type=float, default=0.1, help="angle between two of the three proxies (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="write STEM.png, .svg and .csv (three-proxies, RUN/gap)"
    )
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Solve, print, draw."""
    from proxemic.files import check_stem

    first = (arguments.run_directories or [None])[0]
    out = check_stem(arguments.out or (Path("three-proxies") if first is None else first / "gap"))
    if first is None:
        _example(arguments.epsilon, out)
    else:
        _runs(arguments, out)


def _example(epsilon: float, out: Path) -> None:
    import math

    from proxemic.analysis.gap.bounds import class_minimizers
    from proxemic.analysis.gap.plots import plot_three_proxies, three_proxies
    from proxemic.cli.show import print_written
    from proxemic.errors import UserError
    from proxemic.plots import write_figure

    if not 0 < epsilon < math.pi / 2:
        raise UserError(f"--epsilon is {epsilon}, but must be an angle between 0 and π/2 radians, as 0.1 is.")
    least = class_minimizers(three_proxies(epsilon))[0]
    angle = math.atan2(least[1], least[0])
    figure, curve = plot_three_proxies(epsilon)
    written = write_figure(figure, out, ["angle", "loss"], curve)
    print(
        f"Proxies at 0, {epsilon:g} and -1.5708 radians: the loss of class 1 is least at {angle:.4f} radians, "
        f"{angle:.4f} from its own proxy and {abs(angle - epsilon):.4f} from the second."
    )
    print_written(written)


def _runs(arguments: argparse.Namespace, out: Path) -> None:
    from proxemic.analysis.gap.plots import plot_gaps
    from proxemic.cli.show import format_table, print_written
    from proxemic.plots import write_figure
    from proxemic.protocols.comparison.statistics import t_interval
    from proxemic.protocols.runs.finished import find_runs
    from proxemic.protocols.runs.groups import differences_from_first, repetitions

    runs = find_runs(arguments.run_directories)
    for each in runs:
        _check_fits(each)
    groups = repetitions(runs)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    rows: list[list[Any]] = []
    gaps: dict[str, list[float]] = {}
    for name, members in groups.items():
        for member in members:
            for state in STATES:
                loss = member.loss if state == "trained" else member.untrained_loss()
                images = None if arguments.no_images or state != "trained" else member
                values, classes = _measure(loss, images)
                found.setdefault((name, state), []).append(values)
                gaps.setdefault(f"{name}, {state}", []).extend(classes["gap_at_scale"])
                cells = zip(*(classes.get(key, [None] * len(classes["gap"])) for key in CLASS_COLUMNS), strict=True)
                rows += [[member.path, state, number, *each] for number, each in enumerate(cells)]
    means = {
        column: {key: t_interval([each[key] for each in repeated]) for key in repeated[0]}
        for column, repeated in found.items()
    }
    for name in groups:
        print(name if len(groups[name]) == 1 else f"{name}: mean and 95% interval over {len(groups[name])} seeds")
        columns = [means[name, state] for state in STATES]
        lines = [
            [label, *(_number(each.get(key)) for each in columns)]
            for key, label in MEASURES.items()
            if key in columns[0]
        ]
        print(format_table(["", *STATES], lines))
    trained = {name: found[name, "trained"] for name in groups}
    for title, estimates in differences_from_first(groups, trained).items():
        print(title)
        lines = [[label, _number(estimates[key])] for key, label in MEASURES.items() if key in estimates]
        print(format_table(["", "difference"], lines))
    bounds = {
        ", ".join(column): {key: each.mean for key, each in estimates.items()} for column, estimates in means.items()
    }
    figure = plot_gaps(gaps, bounds)
    print_written(write_figure(figure, out, ["run", "state", "class", *CLASS_COLUMNS], rows))


STATES = ("trained", "untrained")
CLASS_COLUMNS = ("gap", "gap_at_scale", "to_proxy", "to_minimizer")


def _check_fits(member: "FinishedRun") -> None:
    from proxemic.analysis.gap.bounds import softmax_form
    from proxemic.errors import UserError

    try:
        softmax_form(member.loss)
    except ValueError as error:
        raise UserError(f"{member.path}: {error}") from None


def _measure(loss: "Loss", images: "FinishedRun | None") -> tuple[dict[str, float], dict[str, list[float]]]:
    """The means over classes, and the values of each class; where its training images lie only if they are given."""
    from dataclasses import asdict

    from proxemic.analysis.gap.bounds import class_directions, class_minimizers, gap_bounds, softmax_form
    from proxemic.losses.scores.similarity import unit

    proxies, scale = softmax_form(loss)
    own = unit(proxies.double())
    at_one, at_scale = class_minimizers(proxies), class_minimizers(proxies, scale=scale)
    classes = {"gap": (at_one - own).square().sum(1), "gap_at_scale": (at_scale - own).square().sum(1)}
    if images is not None:
        train = images.splits.train
        means = class_directions(images.embed(train), train.labels)
        classes["to_proxy"] = (means - own).square().sum(1)
        classes["to_minimizer"] = (means - at_scale).square().sum(1)
    values = {key: float(each.mean()) for key, each in classes.items()} | asdict(gap_bounds(proxies))
    values["upper_holds"] = float((at_one @ own.mean(0) >= 0).double().mean())
    return values, {key: each.tolist() for key, each in classes.items()}


def _number(estimate: Any) -> str:
    if estimate is None:
        return ""
    text = f"{estimate.mean:.4g}"
    return text if estimate.half_width is None else f"{text} ± {estimate.half_width:.2g}"
