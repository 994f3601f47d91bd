"""A map of a run's embeddings, and measures of how they lie."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from proxemic.analysis.geometry import (
    ClassDistances,
    Hubness,
    alignment,
    chance_occurrences,
    class_distances,
    hubness,
    plot_class_distances,
    plot_occurrences,
    uniformity,
)
from proxemic.analysis.map import plot_map, principal_components, t_sne
from proxemic.analyze.results import Analysis, PathLike, file_stem, suffixed
from proxemic.data import ImageSet
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count
from proxemic.losses.scores.similarity import unit
from proxemic.losses.user_defined import loss_name
from proxemic.metrics.exact import Distance
from proxemic.plots import write_figure
from proxemic.protocols.runs.finished import FinishedRun
from proxemic.tables import Table

_Plot = tuple[str, Any, Sequence[str], Iterable[Sequence[Any]]]  # name, figure, header and rows


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddingMapFigures:
    """How the embeddings of all classes of a split lie; see `proxemic.analysis.geometry`."""

    hubness: Hubness
    distances: ClassDistances
    alignment: float
    uniformity: float


def embedding_map(
    run: PathLike,
    *,
    split: Literal["test", "train", "validation"] = "test",
    method: Literal["pca", "tsne", "both"] = "both",
    classes: int = 20,
    thumbnails: bool = True,
    proxies: bool = True,
    seed: int = 0,
    out: PathLike | None = None,
) -> Analysis[EmbeddingMapFigures]:
    """Draw the embeddings of some classes in two dimensions, and measure how those of all classes lie.

    Args:
        run: A finished run.
        split: Which images.
        method: Principal components, t-SNE, or a map of each.
        classes: How many to draw, chosen at random.
        thumbnails: Draw images where there is room.
        proxies: Draw the proxies.
        seed: Seed of the choice of classes, and of the pairs of many images.
        out: How the names of the files begin: ``RUN/map``.

    Raises:
        UserError: If there is no such run or split, or the classes have too few images for a map.
        ValueError: If a number is out of range.
    """
    stem = file_stem(out, (run,), "map")
    check_count("classes", classes, 1, "a map shows some")
    check_count("seed", seed, 0, "it starts the random numbers")
    content = _load(Path(run), split, classes, proxies=proxies, seed=seed)
    embeddings, labels, distance = content.embeddings, content.images.labels, content.distance
    k = min(10, len(labels) - 1)
    hubs = hubness(embeddings, k=k, distance=distance)
    distances = class_distances(embeddings, labels, distance=distance, seed=seed)
    aligned, uniform = alignment(embeddings, labels, seed=seed), uniformity(embeddings, seed=seed)
    notes, plots = content.notes, []
    for kind in ("pca", "tsne") if method == "both" else (method,):
        note, plot = _map(content, kind, thumbnails=thumbnails)
        notes, plots = [*notes, note], [*plots, plot]
    plots += _measures(content, hubs, distances)
    written = [
        path
        for name, figure, header, rows in plots
        for path in write_figure(figure, suffixed(stem, name), header, rows)
    ]
    sample = f"Distances, alignment, uniformity: {distances.anchors:,} random images, compared with all."
    table = Table(
        ["measure", "value"],
        [
            [f"hubness, skewness of N_{k}", f"{hubs.skewness:.3f}"],
            ["images in no neighbours' list", f"{100 * hubs.antihubs:.1f} %"],
            [f"largest N_{k}", str(hubs.largest)],
            ["distance within a class", f"{distances.within_mean:.4g} ± {distances.within_std:.4g}"],
            ["distance between classes", f"{distances.between_mean:.4g} ± {distances.between_std:.4g}"],
            ["P(within < between)", f"{distances.auc:.4f}"],
            ["alignment, α = 2", f"{aligned:.4f}"],
            ["uniformity, t = 2", f"{uniform:.4f}"],
        ],
        f"{content.title}: {content.images.num_classes} classes, {len(labels):,} images, {distance} distance",
        [*([sample] if distances.anchors < len(labels) else []), *notes],
    )
    return Analysis(
        figures=EmbeddingMapFigures(hubness=hubs, distances=distances, alignment=aligned, uniformity=uniform),
        summary=[table],
        written=written,
    )


@dataclass(frozen=True, eq=False)
class _Content:
    """Embeddings and proxies; where the run is evaluated by cosines, unit vectors.

    Args:
        title: The run and the split.
        distance: Distance that the run is evaluated by.
        images: Images of the split.
        embeddings: Embeddings of the images.
        drawn: The images of the classes that are drawn.
        points: Their embeddings.
        proxies: Those that are drawn: of the same classes, or of as many training classes.
        proxy_labels: The class of each proxy among those drawn, or -1 where it is of another split.
        rows: What each point and then each proxy is: image or proxy, its number, the name of its class.
        notes: What the user should know.
    """

    title: str
    distance: Distance
    images: ImageSet
    embeddings: Float[Tensor, "images dim"]
    drawn: ImageSet
    points: Float[Tensor, "drawn dim"]
    proxies: Float[Tensor, "proxies dim"]
    proxy_labels: Int64[Tensor, " proxies"]
    rows: list[tuple[str, int, str]]
    notes: list[str]


def _load(path: Path, split: str, num_classes: int, *, proxies: bool, seed: int) -> _Content:
    """Embed a split of a run, and choose classes to draw."""
    run = FinishedRun(path)
    images = run.test if split == "test" else getattr(run.splits, split)
    if images is None:
        raise UserError(f"{path} holds out no validation classes: choose the split train or test.")
    distance = run.recipe.evaluation.distance
    classes = _choose(images.num_classes, num_classes, seed)
    drawn, indices = images.select_classes(classes), torch.isin(images.labels, classes).nonzero().flatten()
    rows = [("image", index, images.class_names[images.labels[index]]) for index in indices.tolist()]
    if len(indices) < 4:
        raise UserError(f"classes is {num_classes}, which draws {len(indices)} images, but a map needs at least 4.")
    embeddings = run.embed(images)
    embeddings = unit(embeddings) if distance == "cosine" else embeddings
    notes = [f"Drawn: {len(classes)} of {images.num_classes} classes, {len(indices):,} images."]
    stars, labels = embeddings[:0], torch.empty(0, dtype=torch.int64)
    loss = run.loss
    if proxies and not isinstance(loss, ProxyLoss):
        notes.append(f"{loss_name(loss)} has no proxies: the map is drawn without.")
    elif proxies and isinstance(loss, ProxyLoss):
        total, per_class, names = loss.num_classes, loss.proxies_per_class, run.splits.train.class_names
        classes = classes if split == "train" else _choose(total, num_classes, seed)
        stars = loss.proxies.detach()[classes].flatten(0, 1)
        stars = unit(stars) if distance == "cosine" else stars
        labels = torch.arange(len(classes)).repeat_interleave(per_class)
        numbers = torch.arange(total * per_class).view(total, per_class)[classes].flatten().tolist()
        rows += [("proxy", number, names[number // per_class]) for number in numbers]
        if split != "train":
            labels = torch.full_like(labels, -1)
            notes.append(f"Grey stars: proxies of {len(classes)} of {total} training classes, which are other classes.")
    title = f"{run.name}, {path.name}, {split}" if path.name.startswith("seed-") else f"{run.name}, {split}"
    return _Content(title, distance, images, embeddings, drawn, embeddings[indices], stars, labels, rows, notes)


def _choose(total: int, count: int, seed: int) -> Int64[Tensor, " chosen"]:
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def _map(content: _Content, method: str, *, thumbnails: bool) -> tuple[str, _Plot]:
    """What is to be said of the map, and the map."""
    rows = torch.cat([content.points, content.proxies]).double()
    if method == "pca":
        note, names, places = _project(content.points, rows)
        how = "as they are" if content.points.shape[1] <= 2 else "PCA"
    else:
        note, names, places = "t-SNE keeps neighbours; its distances and axes mean nothing.", None, t_sne(rows)
        how = "t-SNE"
    count, drawn = len(content.points), content.drawn
    figure = plot_map(
        places[:count],
        drawn.labels,
        drawn.class_names,
        proxies=places[count:],
        proxy_labels=content.proxy_labels,
        thumbnails=drawn.pixels.__getitem__ if thumbnails else None,
        axis_names=names,
        title=f"{content.title}: {drawn.num_classes} of {content.images.num_classes} classes, {how}",
    )
    cells = [[*row, f"{x:.6g}", f"{y:.6g}"] for row, (x, y) in zip(content.rows, places.tolist(), strict=True)]
    return note, (method, figure, ["kind", "index", "class", "x", "y"], cells)


def _project(points: Tensor, rows: Tensor) -> tuple[str, tuple[str, str], Tensor]:
    """The rows along the first two principal components of the points."""
    dim = points.shape[1]
    if dim <= 2:
        note = f"The embeddings have {dim} dimension{'s' * (dim > 1)} and are drawn as they are: no projection."
        return note, ("first dimension", "second dimension"), pad(rows, (0, 2 - dim))
    components = principal_components(points)
    shares = [*components.shares.tolist(), float(components.shares.sum())]
    first, second, both = (f"{100 * share:.1f} %" for share in shares)
    note = f"{dim} dimensions projected to 2 by PCA, which keep {both} of the variance of the {len(points):,} images "
    names = (f"first component, {first} of the variance", f"second component, {second} of the variance")
    return f"{note}drawn.", names, components.project(rows)


def _measures(content: _Content, hubs: Hubness, distances: ClassDistances) -> list[_Plot]:
    binned = distances.coarser(64)
    edges = [f"{edge:.6g}" for edge in binned.edges.tolist()]
    bins = zip(edges[:-1], edges[1:], binned.within.tolist(), binned.between.tolist(), strict=True)
    images = hubs.occurrences.bincount().tolist()
    chance = [f"{number:.6g}" for number in chance_occurrences(hubs).tolist()]
    header = ["from", "to", "pairs_within", "pairs_between"]
    return [
        ("distances", plot_class_distances(distances, distance=content.distance, title=content.title), header, bins),
        (
            "hubs",
            plot_occurrences(hubs, title=content.title),
            [f"occurrences_at_{hubs.k}", "images", "images_by_chance"],
            zip(range(len(images)), images, chance, strict=True),
        ),
    ]
