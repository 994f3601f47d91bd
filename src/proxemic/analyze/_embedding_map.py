"""Draw a map of a run's embeddings, and measure their geometry."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
from proxemic.analyze.results import Analysis, PathLike, Stem, file_stem, suffixed
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count
from proxemic.losses.scores.similarity import unit
from proxemic.losses.user_defined import loss_name
from proxemic.metrics.exact import Distance
from proxemic.plots import write_figure
from proxemic.studies.finished import FinishedRun
from proxemic.tables import Table


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddingMapFigures:
    """Measures of the embeddings of all classes of a split; see `proxemic.analysis.geometry`."""

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
    out: Stem | None = None,
) -> Analysis[EmbeddingMapFigures]:
    """Draw the embeddings of some classes in two dimensions, and measure the geometry of all classes.

    The measures are hubness, distances within and between classes, alignment and uniformity. The files are STEM-pca,
    STEM-tsne, STEM-distances and STEM-hubs, each as .png, .svg and .csv. Distances are taken over all pairs of images;
    with more than 11,585 images, a random sample is compared with all. A t-SNE of 5,000 images takes a minute.

    Args:
        run: A finished run.
        split: The test, training or validation classes.
        method: Principal components, t-SNE, or a map of each.
        classes: Number of random classes to draw.
        thumbnails: Draw thumbnails of images where there is room.
        proxies: Draw the proxies as stars.
        seed: Seed of the choice of classes, and of the sample of images.
        out: Prefix of the file names; ``RUN/map`` by default.
    """
    stem = file_stem(out, (run,), "map")
    check_count("classes", classes, 1, "a map shows some")
    check_count("seed", seed, 0, "it starts the random numbers")
    opened = FinishedRun(Path(run))
    images = opened.test if split == "test" else getattr(opened.splits, split)
    if images is None:
        raise UserError(f"{run} has no validation classes: choose the split train or test.")
    chosen = _choose(images.num_classes, classes, seed)
    drawn, indices = images.select_classes(chosen), torch.isin(images.labels, chosen).nonzero().flatten()
    if len(indices) < 4:
        raise UserError(f"classes is {classes}, which draws {len(indices)} images, but a map needs at least 4.")
    embeddings, distance = opened.embed(images), opened.recipe.evaluation.distance
    stars, star_labels, rows = embeddings[:0], torch.empty(0, dtype=torch.int64), []
    notes = [f"Drawn: {len(chosen)} of {images.num_classes} classes, {len(indices):,} images."]
    if proxies and opened.keeps_features:
        notes.append("The run kept the network before training, which has no proxies: the map has none.")
    elif proxies and isinstance(opened.loss, ProxyLoss):
        total = opened.loss.num_classes
        starred = chosen if split == "train" else _choose(total, classes, seed)
        stars, star_labels, rows = _proxies_of(starred, opened.loss, opened.train.class_names)
        if split != "train":
            star_labels = torch.full_like(star_labels, -1)
            notes.append(f"Grey stars: proxies of {len(starred)} of the {total} training classes.")
    elif proxies:
        notes.append(f"{loss_name(opened.loss)} has no proxies: the map has none.")
    if distance == "cosine":
        embeddings, stars = unit(embeddings), unit(stars)
    rows = [("image", index, images.class_names[images.labels[index]]) for index in indices.tolist()] + rows
    k = min(10, len(images.labels) - 1)
    hubs = hubness(embeddings, k=k, distance=distance)
    distances = class_distances(embeddings, images.labels, distance=distance, seed=seed)
    aligned, uniform = alignment(embeddings, images.labels, seed=seed), uniformity(embeddings, seed=seed)
    folder = opened.path.name
    title = f"{opened.name}, {folder}, {split}" if folder.startswith("seed-") else f"{opened.name}, {split}"
    written = []
    for kind in ("pca", "tsne") if method == "both" else (method,):
        note, how, axes, places = _places(embeddings[indices], stars, kind)
        figure = plot_map(
            places[: len(indices)],
            drawn.labels,
            drawn.class_names,
            proxies=places[len(indices) :],
            proxy_labels=star_labels,
            thumbnails=drawn.pictures.__getitem__ if thumbnails and drawn.kind == "images" else None,
            axis_names=axes,
            title=f"{title}: {drawn.num_classes} of {images.num_classes} classes, {how}",
        )
        cells = [[*row, f"{x:.6g}", f"{y:.6g}"] for row, (x, y) in zip(rows, places.tolist(), strict=True)]
        written += write_figure(figure, suffixed(stem, kind), ["kind", "index", "class", "x", "y"], cells)
        notes.append(note)
    written += _write_measures(stem, title, hubs, distances, distance)
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
        f"{title}: {images.num_classes} classes, {len(images.labels):,} images, {distance} distance",
        [*([sample] if distances.anchors < len(images.labels) else []), *notes],
    )
    return Analysis(
        figures=EmbeddingMapFigures(hubness=hubs, distances=distances, alignment=aligned, uniformity=uniform),
        summary=[table],
        written=written,
    )


def _choose(total: int, count: int, seed: int) -> Int64[Tensor, " chosen"]:
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def _proxies_of(
    classes: Int64[Tensor, " chosen"], loss: ProxyLoss, names: tuple[str, ...]
) -> tuple[Float[Tensor, "proxies dim"], Int64[Tensor, " proxies"], list[tuple[str, int, str]]]:
    """Return the proxies of some classes, their indices among these classes, and rows for the CSV file."""
    per_class = loss.proxies_per_class
    numbers = torch.arange(loss.num_classes * per_class).view(-1, per_class)[classes].flatten()
    rows = [("proxy", number, names[number // per_class]) for number in numbers.tolist()]
    labels = torch.arange(len(classes)).repeat_interleave(per_class)
    return loss.proxies.detach().flatten(0, 1)[numbers], labels, rows


def _places(
    points: Float[Tensor, "drawn dim"], proxies: Float[Tensor, "proxies dim"], method: str
) -> tuple[str, str, tuple[str, str] | None, Float[Tensor, "rows 2"]]:
    """Project points and proxies to two dimensions; return a note, the method, the names of the axes and the places."""
    rows, dim = torch.cat([points, proxies]).double(), points.shape[1]
    if method == "tsne":
        return "t-SNE keeps neighbours; its distances and axes have no meaning.", "t-SNE", None, t_sne(rows)
    if dim <= 2:
        note = f"The embeddings have {dim} dimension{'s' * (dim > 1)}, and are drawn without a projection."
        return note, "no projection", ("first dimension", "second dimension"), pad(rows, (0, 2 - dim))
    components = principal_components(points)
    shares = [*components.shares.tolist(), float(components.shares.sum())]
    first, second, both = (f"{100 * share:.1f} %" for share in shares)
    note = f"{dim} dimensions projected to 2 by PCA, which keep {both} of the variance of the {len(points):,} images "
    names = (f"first component, {first} of the variance", f"second component, {second} of the variance")
    return f"{note}drawn.", "PCA", names, components.project(rows)


def _write_measures(stem: Path, title: str, hubs: Hubness, distances: ClassDistances, distance: Distance) -> list[Path]:
    binned = distances.coarser(64)
    edges = [f"{edge:.6g}" for edge in binned.edges.tolist()]
    bins = zip(edges[:-1], edges[1:], binned.within.tolist(), binned.between.tolist(), strict=True)
    header = ["from", "to", "pairs_within", "pairs_between"]
    figure = plot_class_distances(distances, distance=distance, title=title)
    written = write_figure(figure, suffixed(stem, "distances"), header, bins)
    images = hubs.occurrences.bincount().tolist()
    chance = [f"{number:.6g}" for number in chance_occurrences(hubs).tolist()]
    header = [f"occurrences_at_{hubs.k}", "images", "images_by_chance"]
    rows = zip(range(len(images)), images, chance, strict=True)
    return written + write_figure(plot_occurrences(hubs, title=title), suffixed(stem, "hubs"), header, rows)
