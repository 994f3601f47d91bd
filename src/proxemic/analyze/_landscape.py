"""Draw landscapes of a softmax of distances, and find their minima."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxemic.analysis.forces import draw_forces, two_class_forces
from proxemic.analysis.landscape import (
    PAPER_WARP,
    TOY_EMBEDDINGS,
    Landscape,
    Minimum,
    WarpPotential,
    draw_landscapes,
    find_minimum,
    landscape_grid,
    landscape_of,
    named_functions,
    paper_landscapes,
    polygon,
    pushes_off_proxies,
)
from proxemic.analyze.results import Analysis, PathLike, Stem, file_stem, suffixed
from proxemic.errors import UserError
from proxemic.losses import EuclideanSoftmaxLoss, WarpedSoftmaxLoss
from proxemic.losses.checks import check_count, check_positive
from proxemic.losses.user_defined import loss_name
from proxemic.plots import write_figure
from proxemic.tables import Table

WARP = ("alpha", "k1", "k2")
# For each figure, by the suffix of its file name: the landscapes by their titles, and half the width of the plots.
_Drawings = Mapping[str, tuple[Mapping[str, Landscape], float]]


def landscape(
    run: PathLike | None = None,
    *,
    class_: int | None = None,
    functions: str | None = None,
    alpha: float | None = None,
    k1: float | None = None,
    k2: float | None = None,
    temperature: float | None = None,
    classes: int | None = None,
    distance: float | None = None,
    out: Stem | None = None,
) -> Analysis[Mapping[str, tuple[Landscape, Minimum]]]:
    """Draw the loss of one embedding as a function of its place, and find its minimum.

    Without arguments, draw figures 1, 3 and 5 of the warping paper; with functions or proxies, draw their landscape;
    with a run, draw the landscape of one of its classes.

    Args:
        run: A finished run of `EuclideanSoftmaxLoss` or `WarpedSoftmaxLoss` with one proxy per class.
        class_: The class of the run; 0 by default.
        functions: ``identity``, ``square``, ``square-root``, ``power-P`` (f1 = f2 = t^P), ``times-K`` (f1 = K·t,
            f2 = t), or ``warp``, the default.
        alpha: Distance of the warp's minimum; 3 by default.
        k1: Slope of the warp below alpha; 0.65 by default.
        k2: Slope of the warp from alpha on; 1.5 by default.
        temperature: Factor T of the distances; 1 by default.
        classes: Number of proxies, placed on a polygon; 2 by default.
        distance: Distance between neighbouring proxies; 4 by default.
        out: Prefix of the file names; ``RUN/landscape``, or ``landscape`` by default.

    Returns:
        The landscapes with their minima, by title.
    """
    names = ("functions", *WARP, "temperature", "classes", "distance")
    values = (functions, alpha, k1, k2, temperature, classes, distance)
    settings = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    stem = file_stem(out, () if run is None else (run,), "landscape")
    notes: list[str] = []
    if run is not None:
        if settings:
            first = next(iter(settings))
            raise UserError(f"{first} is given with a run, which has its own functions and proxies: drop one of them.")
        drawings, notes = _of_run(Path(run), class_ or 0)
    elif class_ is not None:
        raise UserError(f"class {class_} is given without a run: give the run, too.")
    else:
        drawings = _of_settings(settings) if settings else {key: (of, 6.0) for key, of in paper_landscapes().items()}
    figures: dict[str, tuple[Landscape, Minimum]] = {}
    tables, written = [], []
    header = ["loss of an embedding", "minimum from its proxy", "alpha", "difference", "off the line"]
    for name, (shown, half_width) in drawings.items():
        minima = {title: find_minimum(item) for title, item in shown.items()}
        figures |= {title: (item, minima[title]) for title, item in shown.items()}
        tables.append(Table(header, [[title, *_cells(shown[title], minimum)] for title, minimum in minima.items()]))
        grids = [landscape_grid(item, half_width) for item in shown.values()]
        x, y, _ = grids[0]
        places = torch.meshgrid(x, y, indexing="xy")
        numbers = torch.stack((*places, *(values for _, _, values in grids)), 2).flatten(0, 1)
        rows = [[f"{number:.6g}" for number in row] for row in numbers.tolist()]
        figure = draw_landscapes(shown, minima, half_width)
        written += write_figure(figure, suffixed(stem, name), ["x", "y", *shown], rows)
    if run is None and not settings:
        written += _draw_forces(stem)
    return Analysis(figures=figures, summary=[*notes, *tables], written=written)


def _of_settings(settings: Mapping[str, Any]) -> _Drawings:
    name = settings.get("functions", "warp")
    for key in WARP:
        if name != "warp" and key in settings:
            raise UserError(f"{key} is given with the functions {name}, but belongs to the warp: drop one of them.")
    warp = WarpPotential(*(settings.get(key, getattr(PAPER_WARP, key)) for key in WARP))
    title, f1, f2 = named_functions(name, warp)
    classes, distance = settings.get("classes", 2), check_positive("distance", settings.get("distance", 4.0))
    check_count("classes", classes, 2, "the loss compares classes")
    proxies = polygon(classes, distance)
    temperature = check_positive("temperature", settings.get("temperature", 1.0))
    widest = max(proxies.norm(dim=1).max().item(), warp.alpha if name == "warp" else 0.0)
    title += f", {classes} classes" * (classes > 2) + f", T = {temperature:g}" * (temperature != 1)
    return {name: ({title: Landscape(proxies[0], proxies[1:], f1, f2, temperature)}, 1.5 * widest)}


def _of_run(path: Path, label: int) -> tuple[_Drawings, list[str]]:
    from proxemic.studies.finished import FinishedRun

    run = FinishedRun(path)
    loss, name = run.loss, str(label)
    if not isinstance(loss, (EuclideanSoftmaxLoss, WarpedSoftmaxLoss)) or loss.proxies_per_class > 1:
        raise UserError(
            f"{path} was trained with {loss_name(loss)}, but a landscape needs EuclideanSoftmaxLoss or "
            "WarpedSoftmaxLoss with one proxy per class: give such a run."
        )
    if not 0 <= label < loss.num_classes:
        raise UserError(f"class is {label}, but {path} has the classes 0 to {loss.num_classes - 1}.")
    shown = landscape_of(loss, label)
    with suppress(UserError):  # without images, the class has a number instead of a name
        name = f"'{run.train.class_names[label]}'"
    notes = []
    if loss.embedding_size > 2:
        notes.append(
            f"{loss.embedding_size} dimensions: drawn on the plane through the proxy of class {name} and its two "
            "nearest proxies."
        )
    alpha = 0.0
    if isinstance(shown.f1, WarpPotential):
        alpha, pushes, slope = shown.f1.alpha, pushes_off_proxies(loss), shown.f1.at_proxy
        notes.append(
            f"{_pushes(pushes)} Where this is below {'k1' if alpha else 'k2'} = {slope:g}, the proxy itself is a local "
            f"minimum: in {int((pushes < slope).sum())} of {len(pushes)} classes."
        )
    elif shown.f1 is torch.positive and loss.scoring.transform is None:
        pushes = _pushes(pushes_off_proxies(loss))
        notes.append(f"{pushes} With a warp whose k1 is less than all of these, no proxy is a local minimum.")
    nearest = (shown.in_plane - shown.target).norm(dim=1).sort().values[:2].max().item()
    return {f"class-{label}": ({f"{run.name}, class {label}": shown}, 1.5 * max(nearest, alpha))}, notes


def _pushes(pushes: Tensor) -> str:
    return (
        f"The other classes push an embedding off its proxy with {pushes.min():.2f} to {pushes.max():.2f}, where 1 "
        "means that all push in the same direction."
    )


def _cells(shown: Landscape, minimum: Minimum) -> list[str]:
    if minimum.runs_away:
        return ["runs away", "", "", ""]
    distance = ("plateau from " if minimum.flat else "") + f"{minimum.distance:.4f}"
    off_line = "" if minimum.off_line is None else f"{minimum.off_line:.4f}"
    if not isinstance(shown.f1, WarpPotential):
        return [distance, "", "", off_line]
    return [distance, f"{shown.f1.alpha:g}", f"{minimum.distance - shown.f1.alpha:+.4f}", off_line]


def _draw_forces(stem: Path) -> list[Path]:
    proxies, half = polygon(2, 4.0), torch.tensor(TOY_EMBEDDINGS, dtype=torch.float64)
    embeddings = torch.cat((half, proxies[1] - half))
    labels = torch.arange(2).repeat_interleave(len(half))
    rows = []
    for name, f1 in (("f1 = t", torch.positive), ("f1 = warp", PAPER_WARP)):
        for place, label in zip(embeddings, labels.tolist(), strict=True):
            forces = two_class_forces(place.unsqueeze(0), proxies[label], proxies[1 - label], f1)
            for kind in ("push", "pull", "coupled", "proxy_push", "proxy_pull"):
                numbers = (*place.tolist(), *getattr(forces, kind)[0].tolist())
                rows.append((name, label, kind, *(f"{number:.6g}" for number in numbers)))
    figure = draw_forces(embeddings, labels, proxies, PAPER_WARP)
    header = ["functions", "class", "force", "x", "y", "force_x", "force_y"]
    return write_figure(figure, suffixed(stem, "forces"), header, rows)
