"""``proxemic analyze robustness``."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from proxemic.analysis.robustness import Robustness
    from proxemic.data.corruptions import Corruption
    from proxemic.protocols.comparison.statistics import Estimate
    from proxemic.protocols.runs.finished import FinishedRun

__all__ = ["add_parser", "run"]

HEADER = ("run", "group", "seed", "corruption", "severity", "metric", "value")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "robustness",
        help="what is left of a metric when the test pictures are corrupted",
        description="Judge finished runs on their test images under noise, dropped pixels, distortions and blur, as "
        "Table IV of the warping paper, but in five severities. Runs of one image size see the very same corrupted "
        "pictures; runs that differ in their seed alone are one group, with a 95%% interval of its mean.",
        epilog="Severity 3 is about what the paper used, 1 mild, 5 strong. Grey images have no hue: that corruption "
        "is left out.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN", help="a finished run")
    parser.add_argument("--corruptions", metavar="A,B", help="which, as shear,dropout (all nine)")
    parser.add_argument("--severities", default="1,2,3,4,5", metavar="1,3", help="which, of 1 to 5 (%(default)s)")
    parser.add_argument("--metric", default="recall@1", help="that the runs' evaluation computes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions (%(default)s)")
    parser.add_argument(
        "--against", choices=["paper"], help="also show what the paper prints (Table IV), and what differs in protocol"
    )
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg and .csv (RUN/robustness)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Corrupt, embed, judge; print the table and write the figure."""
    import torch

    from proxemic.analysis.robustness import Robustness, plot_robustness
    from proxemic.cli.show import print_written
    from proxemic.files import check_stem
    from proxemic.plots import write_figure
    from proxemic.protocols.runs.corrupted import check_metric, check_same_test, measure_corrupted
    from proxemic.protocols.runs.finished import find_runs
    from proxemic.protocols.runs.groups import repetitions

    metric = arguments.metric
    out = check_stem(arguments.out or arguments.run_directories[0] / "robustness")
    severities = _read_severities(arguments.severities)
    names = _read_names(arguments.corruptions)
    runs = find_runs(arguments.run_directories)
    groups = repetitions(runs)
    check_same_test(runs)
    check_metric(runs, metric)
    names = _without_hue_of_grey(names, runs)
    corruptions = _make(names, severities, arguments.seed, runs)

    values = measure_corrupted(runs, corruptions, metric)
    found = {}
    for name, group in groups.items():
        rows = torch.tensor([values[each.path] for each in group], dtype=torch.float64)
        found[name] = Robustness(rows[:, 0], rows[:, 1:].unflatten(1, (len(names), len(severities))))
    _print(found, names, severities, metric)
    _print_differences(groups, found, names)
    if arguments.against:
        _print_against_paper(groups, found, names, severities, metric)
    points = {name: _intervals(each.curves) for name, each in found.items()}
    figure = plot_robustness(
        {name: mean for name, (mean, _) in points.items()},
        {name: half for name, (_, half) in points.items() if half is not None},
        corruptions=names,
        severities=severities,
        metric=metric,
    )
    settings = [("none", 0), *((each.name, each.severity) for each in corruptions)]
    rows = [
        (each.path, name, each.seed, *setting, metric, value)
        for name, group in groups.items()
        for each in group
        for setting, value in zip(settings, values[each.path], strict=True)
    ]
    print_written(write_figure(figure, out, HEADER, rows))


def _read_severities(text: str) -> list[int]:
    from proxemic.errors import UserError

    words = text.split(",")
    if not set(words) <= set("12345"):
        raise UserError(f"--severities is {text!r}, but must be of 1 (mild) to 5 (strong), with commas, as 1,3,5.")
    return sorted({int(word) for word in words})


def _read_names(text: str | None) -> list[str]:
    from proxemic.data.corruptions import CORRUPTIONS
    from proxemic.errors import UserError

    names = list(CORRUPTIONS if text is None else dict.fromkeys(text.split(",")))
    for name in names:
        if name not in CORRUPTIONS:
            raise UserError(f"--corruptions has {name!r}, but the corruptions are: {', '.join(CORRUPTIONS)}.")
    return names


def _without_hue_of_grey(names: list[str], runs: "list[FinishedRun]") -> list[str]:
    from proxemic.errors import UserError

    hue = "hue-and-saturation"
    grey = next((run for run in runs if run.recipe.images.channels == 1), None)
    if grey is None or hue not in names:
        return names
    if names == [hue]:
        raise UserError(f"{grey.path} sees grey images, which have no {hue}: give other --corruptions.")
    print(f"{hue} is left out: {grey.path} sees grey images.")
    return [name for name in names if name != hue]


def _make(names: list[str], severities: list[int], seed: int, runs: "list[FinishedRun]") -> "list[Corruption]":
    """All of them, once tried: a library that is missing or an image that is too small is said before the work."""
    import torch

    from proxemic.data.corruptions import Corruption

    corruptions = [Corruption(name, severity, seed) for name in names for severity in severities]
    size = min(run.recipe.images.size for run in runs)
    for corruption in corruptions:
        corruption(torch.zeros(3, size, size), 0)
    return corruptions


def _print(found: "dict[str, Robustness]", names: list[str], severities: list[int], metric: str) -> None:
    from proxemic.cli.show import format_table

    columns = [_columns(each).T for each in found.values()]
    rows = [[label, *map(_cell, cells)] for label, *cells in zip(_labels(names), *columns, strict=True)]
    title = f"{metric} in percent, mean over severities {', '.join(map(str, severities))}"
    if any(len(each.clean) > 1 for each in found.values()):
        title += " ± half of the 95% interval over seeds (t distribution)"
    print(title)
    print(format_table(["corruption", *found], rows))


def _print_differences(
    groups: "dict[str, list[FinishedRun]]", found: "dict[str, Robustness]", names: list[str]
) -> None:
    """Beside the first group, which takes away what differs between seeds."""
    from proxemic.cli.show import format_table
    from proxemic.protocols.runs.groups import differences_from_first

    values = {
        name: [dict(zip(_labels(names), row.tolist(), strict=True)) for row in _columns(each)]
        for name, each in found.items()
    }
    for title, estimates in differences_from_first(groups, values).items():
        rows = [[label, _signed(each)] for label, each in estimates.items()]
        print(f"{title}, in percent")
        print(format_table(["corruption", "difference"], rows))


def _print_against_paper(
    groups: "dict[str, list[FinishedRun]]",
    found: "dict[str, Robustness]",
    names: list[str],
    severities: list[int],
    metric: str,
) -> None:
    from proxemic.protocols.runs.corrupted import robustness_against_paper

    # The paper has one severity, about our third.
    place = severities.index(3) if 3 in severities else slice(None)
    of = "severity 3" if 3 in severities else f"severities {', '.join(map(str, severities))}"
    values = {}
    for title, each in found.items():
        corrupted = each.values[:, :, place].reshape(len(each.clean), len(names), -1).mean(2)
        values[title] = {"none": each.clean.tolist(), **dict(zip(names, corrupted.T.tolist(), strict=True))}
    print(robustness_against_paper({title: group[0].content for title, group in groups.items()}, values, metric, of))


def _signed(found: "Estimate") -> str:
    if math.isnan(found.mean):  # as in `_cell`
        return "n/a"
    return f"{100 * found.mean:+.1f} ± {100 * (found.half_width or 0.0):.1f}"


def _labels(names: list[str]) -> list[str]:
    return ["none", *names, "mean of these", "relative drop"]


def _columns(found: "Robustness") -> "Tensor":
    """One row a run: as `_labels`."""
    import torch

    over = found.over_severities
    ends = torch.stack((over.mean(1), found.relative_drop.mean(1)), 1)
    return torch.cat((found.clean.unsqueeze(1), over, ends), 1)


def _cell(values: "Tensor") -> str:
    from proxemic.protocols.comparison.statistics import t_interval

    if values.isnan().any():  # nothing is lost of a clean value of 0
        return "n/a"
    found = t_interval(values.tolist())
    return f"{100 * found.mean:.1f}" + ("" if found.half_width is None else f" ± {100 * found.half_width:.1f}")


def _intervals(curves: "Tensor") -> "tuple[Tensor, Tensor | None]":
    """Means over the runs, and half-widths where there are several."""
    import torch

    from proxemic.protocols.comparison.statistics import t_interval

    mean = curves.mean(0)
    if len(curves) == 1:
        return mean, None
    half = [t_interval(values.tolist()).half_width for values in curves.flatten(1).T]
    return mean, torch.tensor(half, dtype=torch.float64).view_as(mean)
