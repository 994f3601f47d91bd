"""``proxemic analyze landscape``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemic.analysis import Landscape, Minimum

__all__ = ["add_parser", "run"]

WARP = ("alpha", "k1", "k2")
OWN_FLAGS = ("functions", *WARP, "temperature", "classes", "distance")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "landscape",
        help="where a softmax of distances is least, plain and warped",
        description="Draw the loss of one embedding as a function of its place, and find where it is least. Without "
        "flags: figures 1, 3 and 5 of the warping paper; with flags one landscape; with a RUN that of one class of a "
        "EuclideanSoftmaxLoss or a WarpedSoftmaxLoss.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directory", type=Path, nargs="?", metavar="RUN", help="a finished run")
    parser.add_argument("--class", dest="label", type=int, metavar="INDEX", help="of a RUN: number of the class (0)")
    parser.add_argument(
        "--functions",
        metavar="NAME",
        help="identity, square, square-root, power-P (both of t^P), times-K (f1 = K·t, f2 = t) or warp",
    )
    parser.add_argument("--alpha", type=float, metavar="A", help="distance of the warp's minimum (3)")
    parser.add_argument("--k1", type=float, help="slope of the warp below alpha (0.65)")
    parser.add_argument("--k2", type=float, help="slope of the warp from alpha on (1.5)")
    parser.add_argument("--temperature", type=float, metavar="T", help="factor of the distances (1)")
    parser.add_argument("--classes", type=int, metavar="N", help="proxies, corners of a polygon (2)")
    parser.add_argument("--distance", type=float, metavar="D", help="between neighbouring proxies (4)")
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="begin file names with this (landscape, or RUN/landscape)"
    )
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Find the minima, print them, draw."""
    from proxemic.errors import UserError
    from proxemic.files import check_stem

    given = {name: value for name, value in vars(arguments).items() if value is not None}
    own = [name for name in OWN_FLAGS if name in given]
    out = check_stem(arguments.out or given.get("run_directory", Path()) / "landscape")
    if "run_directory" in given:
        if own:
            raise UserError(f"--{own[0]} came with a RUN, which has functions and proxies of its own: drop one.")
        _show(out, *_of_run(given["run_directory"], given.get("label", 0)))
    elif "label" in given:
        raise UserError(f"--class {given['label']} came without a RUN: say which run's class.")
    elif own:
        _show(out, *_of_flags(given))
    else:
        _show_paper(out)


def _show_paper(out: Path) -> None:
    from proxemic.analysis.landscape.examples import paper_landscapes

    for name, landscapes in paper_landscapes().items():
        _show(out, name, landscapes, 6.0)
    _show_forces(out)


def _of_flags(given: dict[str, Any]) -> "tuple[str, dict[str, Landscape], float]":
    from proxemic.analysis import Landscape, WarpPotential
    from proxemic.analysis.landscape.examples import PAPER_WARP, named_functions, polygon
    from proxemic.errors import UserError
    from proxemic.losses.checks import check_count, check_positive

    name = given.get("functions", "warp")
    for key in WARP:
        if name != "warp" and key in given:
            raise UserError(f"--{key} came with --functions {name}, but belongs to the warp: drop one.")
    warp = WarpPotential(*(given.get(key, getattr(PAPER_WARP, key)) for key in WARP))
    title, f1, f2 = named_functions(name, warp)
    classes, distance = given.get("classes", 2), check_positive("--distance", given.get("distance", 4.0))
    check_count("--classes", classes, 2, "a class needs another one to be told apart from")
    proxies = polygon(classes, distance)
    temperature = check_positive("--temperature", given.get("temperature", 1.0))
    landscape = Landscape(proxies[0], proxies[1:], f1, f2, temperature)
    widest = max(proxies.norm(dim=1).max().item(), warp.alpha if name == "warp" else 0.0)
    title += f", {classes} classes" * (classes > 2) + f", T = {temperature:g}" * (temperature != 1)
    return name, {title: landscape}, 1.5 * widest


def _of_run(path: Path, label: int) -> "tuple[str, dict[str, Landscape], float]":
    from contextlib import suppress

    from proxemic.analysis import WarpPotential, landscape_of
    from proxemic.analysis.landscape.potential import pushes_off_proxies
    from proxemic.errors import UserError
    from proxemic.losses import EuclideanSoftmaxLoss, WarpedSoftmaxLoss
    from proxemic.losses.own import loss_name
    from proxemic.protocols.runs.finished import FinishedRun

    trained = FinishedRun(path)
    loss, name = trained.loss, str(label)
    if not isinstance(loss, (EuclideanSoftmaxLoss, WarpedSoftmaxLoss)) or loss.proxies_per_class > 1:
        raise UserError(
            f"{path} was trained with {loss_name(loss)}, but landscapes are of EuclideanSoftmaxLoss and "
            "WarpedSoftmaxLoss with one proxy a class: give such a run."
        )
    if not 0 <= label < loss.num_classes:
        raise UserError(f"--class is {label}, but {path} has the classes 0 to {loss.num_classes - 1}.")
    landscape = landscape_of(loss, label)
    with suppress(UserError):  # the images may be gone, and only name the class
        name = f"'{trained.splits.train.class_names[label]}'"
    if loss.embedding_size > 2:
        print(
            f"{loss.embedding_size} dimensions: drawn on the plane through the proxy of class {name} and its two "
            "nearest"
        )
    if isinstance(landscape.f1, WarpPotential):
        pushes, slope = pushes_off_proxies(loss), landscape.f1.at_proxy
        name_of_slope = "k1" if landscape.f1.alpha else "k2"
        print(
            f"The other classes push an embedding off its proxy with {pushes.min():.2f} to {pushes.max():.2f}, 1 being "
            f"all one way. Less than {name_of_slope} = {slope:g} makes the proxy itself a local minimum: "
            f"in {int((pushes < slope).sum())} of {len(pushes)} classes."
        )
    shown = (landscape.in_plane - landscape.own).norm(dim=1).sort().values[:2].max().item()
    widest = max(shown, landscape.f1.alpha if isinstance(landscape.f1, WarpPotential) else 0.0)
    return f"class-{label}", {f"{trained.name}, class {label}": landscape}, 1.5 * widest


def _show(out: Path, name: str, landscapes: "dict[str, Landscape]", half_width: float) -> None:
    import torch

    from proxemic.analysis import find_minimum
    from proxemic.analysis.landscape.plots import draw_landscapes, landscape_grid
    from proxemic.cli.show import format_table, print_written
    from proxemic.plots import write_figure

    minima = {title: find_minimum(landscape) for title, landscape in landscapes.items()}
    header = ["loss of an embedding", "minimum from its proxy", "alpha", "difference", "off the line"]
    print(format_table(header, [[title, *_cells(landscapes[title], each)] for title, each in minima.items()]))
    grids = [landscape_grid(landscape, half_width) for landscape in landscapes.values()]
    x, y, _ = grids[0]
    numbers = torch.stack((*torch.meshgrid(x, y, indexing="xy"), *(values for _, _, values in grids)), 2).flatten(0, 1)
    rows = [[f"{number:.6g}" for number in row] for row in numbers.tolist()]
    figure = draw_landscapes(landscapes, minima, half_width)
    print_written(write_figure(figure, _stem(out, name), ["x", "y", *landscapes], rows))


def _cells(landscape: "Landscape", found: "Minimum") -> list[str]:
    from proxemic.analysis import WarpPotential

    if found.runs_away:
        return ["runs away", "", "", ""]
    distance = ("plateau from " if found.flat else "") + f"{found.distance:.4f}"
    off_line = "" if found.off_line is None else f"{found.off_line:.4f}"
    if not isinstance(landscape.f1, WarpPotential):
        return [distance, "", "", off_line]
    alpha = landscape.f1.alpha
    return [distance, f"{alpha:g}", f"{found.distance - alpha:+.4f}", off_line]


def _show_forces(out: Path) -> None:
    import torch

    from proxemic.analysis import forces
    from proxemic.analysis.forces.plots import draw_forces
    from proxemic.analysis.landscape.examples import PAPER_WARP, TOY, polygon
    from proxemic.cli.show import print_written
    from proxemic.plots import write_figure

    proxies, half = polygon(2, 4.0), torch.tensor(TOY, dtype=torch.float64)
    embeddings = torch.cat((half, proxies[1] - half))
    labels = torch.arange(2).repeat_interleave(len(half))
    rows = []
    for name, f1 in (("f1 = t", torch.positive), ("f1 = warp", PAPER_WARP)):
        for place, label in zip(embeddings, labels.tolist(), strict=True):
            found = forces(place.unsqueeze(0), proxies[label], proxies[1 - label], f1)
            for kind in ("push", "pull", "coupled", "proxy_push", "proxy_pull"):
                numbers = (*place.tolist(), *getattr(found, kind)[0].tolist())
                rows.append((name, label, kind, *(f"{number:.6g}" for number in numbers)))
    figure = draw_forces(embeddings, labels, proxies, PAPER_WARP)
    header = ["functions", "class", "force", "x", "y", "force_x", "force_y"]
    print_written(write_figure(figure, _stem(out, "forces"), header, rows))


def _stem(out: Path, name: str) -> Path:
    return out.with_name(f"{out.name}-{name}")
