"""``proxemic analyze map``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from proxemic.analysis.geometry.neighbourhoods import ClassDistances, Hubness
    from proxemic.cli.analyze.map_content import MapContent

__all__ = ["add_parser", "run"]

Picture = tuple[str, Any, "Sequence[str]", "Iterable[Sequence[Any]]"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "map",
        help="a map of a run's embeddings; their hubs, distances, alignment and uniformity",
        description="Draw the embeddings of some classes in two dimensions, by principal components and by t-SNE, and "
        "measure those of all classes: hubness, distances within and between classes, alignment, uniformity.",
        epilog="Writes STEM-pca, STEM-tsne, STEM-distances and STEM-hubs, each as .png, .svg and .csv. Distances are "
        "of all pairs of images; of more than 11,585 images a random sample is compared with all. A t-SNE of 5,000 "
        "images takes a minute.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument(
        "--split", choices=("test", "train", "validation"), default="test", help="which images (%(default)s)"
    )
    parser.add_argument("--method", choices=("pca", "tsne", "both"), default="both", help="of the map (%(default)s)")
    parser.add_argument(
        "--classes", type=int, default=20, metavar="N", help="draw N classes chosen at random; all measures (20)"
    )
    parser.add_argument(
        "--thumbnails", action=argparse.BooleanOptionalAction, default=True, help="pictures where there is room"
    )
    parser.add_argument("--no-proxies", dest="proxies", action="store_false", help="draw the embeddings alone")
    parser.add_argument("--seed", type=int, default=0, help="of the chosen classes (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin the files' names so (RUN/map)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Embed, measure, draw; then print and write."""
    from proxemic.analysis.geometry.neighbourhoods import alignment, class_distances, hubness, uniformity
    from proxemic.cli.analyze.map_content import load_map
    from proxemic.cli.show import format_table
    from proxemic.errors import UserError
    from proxemic.files import check_stem
    from proxemic.plots import write_figure

    check_stem(arguments.out or arguments.run_directory / "map")
    if arguments.classes < 1:
        raise UserError(f"--classes is {arguments.classes}, but must be at least 1.")
    if arguments.seed < 0:
        raise UserError(f"--seed is {arguments.seed}, but must be 0 or more.")
    content = load_map(
        arguments.run_directory, arguments.split, arguments.classes, proxies=arguments.proxies, seed=arguments.seed
    )
    embeddings, labels, distance = content.embeddings, content.images.labels, content.distance
    k = min(10, len(labels) - 1)
    hubs = hubness(embeddings, k=k, distance=distance)
    distances = class_distances(embeddings, labels, distance=distance, seed=arguments.seed)
    rows = [
        [f"hubness, skewness of N_{k}", f"{hubs.skewness:.3f}"],
        ["images in no neighbours' list", f"{100 * hubs.antihubs:.1f} %"],
        [f"largest N_{k}", str(hubs.largest)],
        ["distance within a class", f"{distances.within_mean:.4g} ± {distances.within_std:.4g}"],
        ["distance between classes", f"{distances.between_mean:.4g} ± {distances.between_std:.4g}"],
        ["P(within < between)", f"{distances.auc:.4f}"],
        ["alignment, α = 2", f"{alignment(embeddings, labels, seed=arguments.seed):.4f}"],
        ["uniformity, t = 2", f"{uniformity(embeddings, seed=arguments.seed):.4f}"],
    ]
    notes, pictures = content.notes, []
    for method in ("pca", "tsne") if arguments.method == "both" else (arguments.method,):
        note, picture = _map(content, method, thumbnails=arguments.thumbnails)
        notes, pictures = [*notes, note], [*pictures, picture]
    pictures += _measures(content, hubs, distances)
    stem = arguments.run_directory / "map" if arguments.out is None else arguments.out
    for name, figure, header, cells in pictures:
        write_figure(figure, stem.with_name(f"{stem.name}-{name}"), header, cells)
    print(f"{content.title}: {content.images.num_classes} classes, {len(labels):,} images, {distance} distance")
    print(format_table(["measure", "value"], rows))
    if distances.anchors < len(labels):
        print(f"Distances, alignment, uniformity: {distances.anchors:,} random images, compared with all.")
    print(*notes, sep="\n")
    names = ", ".join(f"{stem.name}-{name}" for name, *_ in pictures)
    print(f"Wrote {stem.parent}: {names}, each as .png, .svg and .csv")


def _map(content: "MapContent", method: str, *, thumbnails: bool) -> tuple[str, Picture]:
    """What is to be said of the map, and the map."""
    import torch

    from proxemic.analysis.map.plots import plot_map
    from proxemic.analysis.map.projections import t_sne

    rows = torch.cat([content.points, content.proxies]).double()
    if method == "pca":
        note, names, places = _project(content.points, rows)
        how = "as they are" if content.points.shape[1] <= 2 else "PCA"
    else:
        note, names = "t-SNE keeps neighbours; its distances and axes mean nothing.", None
        places = t_sne(rows)
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


def _project(points: "Tensor", rows: "Tensor") -> "tuple[str, tuple[str, str], Tensor]":
    """The rows along the first two principal components of the points."""
    from torch.nn.functional import pad

    from proxemic.analysis.map.projections import principal_components

    dim = points.shape[1]
    if dim <= 2:
        note = f"The embeddings have {dim} dimension{'s' * (dim > 1)} and are drawn as they are: no projection."
        return note, ("first dimension", "second dimension"), pad(rows, (0, 2 - dim))
    found = principal_components(points)
    first, second, both = (f"{100 * share:.1f} %" for share in (*found.shares.tolist(), float(found.shares.sum())))
    of = f"of the variance of the {len(points):,} images drawn"
    note = f"{dim} dimensions projected to 2 by PCA, which keep {both} {of}."
    names = (f"first component, {first} of the variance", f"second component, {second} of the variance")
    return note, names, found.project(rows)


def _measures(content: "MapContent", hubs: "Hubness", distances: "ClassDistances") -> list[Picture]:
    from proxemic.analysis.geometry.plots import chance_occurrences, plot_class_distances, plot_occurrences

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
