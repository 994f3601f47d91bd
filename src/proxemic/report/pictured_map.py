"""The map of a report: embeddings in two dimensions, with images on hover and a search by class."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float64, Int64
from markupsafe import Markup
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.analysis.map import principal_components, t_sne, umap
from proxemic.extras import optional_dependency
from proxemic.pages import Section, chart, data_url, table
from proxemic.pages.charts import COLORS
from proxemic.pages.page import short
from proxemic.report.judged import Judged, name_of
from proxemic.tables import Table, percent

Projection = Literal["pca", "tsne", "umap"]
"""How a map is made: principal components, t-SNE, or UMAP, which needs the extra ``umap``."""

MOST = 1000
"""Most points of a map, each with its image; of more images, a random sample is drawn."""

_SIDE, _ALL = 96, 2_000_000  # the side of an image in pixels; the characters of all images
_CLASSES = 6  # colours; further classes repeat them in another shape
_SHAPES = ("circle", "square", "triangle-up", "diamond")
_TOLD_APART = _CLASSES * len(_SHAPES)
# A search looks for a part of the name of a class, ignoring case.
_FOUND = "!wanted || indexof(lower(datum['class']), lower(wanted)) >= 0"


def check_projection(method: str) -> None:
    """Raise `ValueError` if the method is unknown, `ModuleNotFoundError` if its package is not installed."""
    if method not in get_args(Projection):
        raise ValueError(f"projection is {method!r}, but must be one of {', '.join(get_args(Projection))}")
    if method == "umap":
        with optional_dependency("umap"):
            import umap  # noqa: F401


def pictured_map(judged: Judged, *, method: Projection = "pca", seed: int = 0) -> Section | None:
    """Draw embeddings in two dimensions, in grey for more than two dozen classes; raise as `check_projection`."""
    check_projection(method)
    count = len(judged.embeddings)
    if count < 4:
        return None
    rows = torch.arange(count)
    if count > MOST:
        rows = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:MOST].sort().values
    has_classes = judged.images.num_classes > 0
    many = len(judged.images.labels[rows].unique()) > _TOLD_APART
    places, note, axes = _places(judged, rows, method)
    spec = _spec(_values(judged, rows, places, grey=many), axes, has_classes=has_classes, grey=many)
    said = f"A map of {len(rows):,} images" + (f", drawn at random from {count:,}" if count > len(rows) else "")
    said += ". Images that are near look alike to the network. Hover over a point, or touch it, to see its image."
    said += " Search for a class to find it in the map; the list below names all classes." if has_classes else ""
    return Section("Map", chart(spec, said) + Markup("<p><small>{}</small></p>").format(note) + _classes(judged, rows))


def _places(
    judged: Judged, rows: Int64[Tensor, " drawn"], method: Projection
) -> tuple[Float64[Tensor, "drawn 2"], str, tuple[str, str] | None]:
    embeddings = judged.embeddings[rows].double()
    if judged.config.distance == "cosine":
        embeddings = normalize(embeddings)
    if method == "pca":
        found = principal_components(embeddings, min(2, embeddings.shape[1]))
        places = torch.zeros(len(rows), 2, dtype=torch.float64)
        places[:, : len(found.shares)] = found.project(embeddings)
        shares = [f"{percent(float(share))} %" for share in (*found.shares, 0.0)][:2]
        kept = f"{percent(float(found.shares.sum()))} %"
        note = f"The first two principal components of {embeddings.shape[1]} dimensions keep {kept} of the variance. "
        note += "With --map tsne, proxemic report keeps neighbours together instead, which takes some seconds."
        return places, note, (f"first component, {shares[0]}", f"second component, {shares[1]}")
    name, draw = {"tsne": ("t-SNE", t_sne), "umap": ("UMAP", umap)}[method]
    return draw(embeddings), f"{name} keeps neighbours; its distances and axes mean nothing.", None


def _values(
    judged: Judged, rows: Int64[Tensor, " drawn"], places: Float64[Tensor, "drawn 2"], *, grey: bool
) -> list[dict[str, Any]]:
    most, labels = _ALL // len(rows), judged.images.labels
    values = []
    for row, (x, y) in zip(rows.tolist(), places.tolist(), strict=True):
        label, picture = int(labels[row]) if judged.images.class_names else 0, judged.picture(row, _SIDE)
        values.append(
            {
                "x": float(f"{x:.4g}"),
                "y": float(f"{y:.4g}"),
                "class": judged.label(row) or "",
                "name": short(name_of(judged, row)),
                "colour": label % _CLASSES,
                "shape": _SHAPES[0 if grey else label // _CLASSES % len(_SHAPES)],
                "image": "" if picture is None else data_url(picture, _SIDE, max(most, 1200)),
            }
        )
    return values


def _spec(
    values: list[dict[str, Any]], axes: tuple[str, str] | None, *, has_classes: bool, grey: bool
) -> dict[str, Any]:
    def axis(number: int) -> dict[str, Any]:
        field = {"field": "xy"[number], "type": "quantitative", "scale": {"zero": False, "nice": False, "padding": 12}}
        shown = {"title": axes[number], "axis": {"tickCount": 5}} if axes else {"title": None, "axis": None}
        return field | shown

    named = len({value["class"] for value in values}) <= _CLASSES
    colour = {"field": "class" if named else "colour", "type": "nominal", "title": None}
    colour |= {} if named and has_classes else {"legend": None}
    if grey:  # except for what is searched for
        colour = {"condition": {"test": f"wanted && ({_FOUND})", "value": COLORS[0]}, "value": COLORS[-1]}
    shape = {"field": "shape", "type": "nominal", "scale": {"domain": [*_SHAPES], "range": [*_SHAPES]}, "legend": None}
    tooltip = [{"field": name, "type": "nominal", "title": name} for name in ("image", "class", "name")]
    box = {"input": "search", "name": "Search by class", "placeholder": "part of a name", "autocomplete": "off"}
    bright = 0.6 if grey else 0.9
    found = {"condition": {"test": _FOUND, "value": bright}, "value": 0.07} if has_classes else {"value": bright}
    return {
        "height": 480,
        "data": {"values": values},
        "params": [{"name": "wanted", "value": "", "bind": box}] if has_classes else [],
        # A screen reader should read the description and the list of classes, not a thousand points.
        "mark": {"type": "point", "filled": True, "size": 55, "aria": False},
        "encoding": {"x": axis(0), "y": axis(1), "color": colour, "shape": shape, "opacity": found, "tooltip": tooltip},
    }


def _classes(judged: Judged, rows: Int64[Tensor, " drawn"]) -> Markup:
    """List the classes of the map, for readers who cannot use a pointer."""
    labels, names = judged.images.labels, judged.images.class_names
    if not names:
        return Markup()
    drawn = labels[rows][labels[rows] >= 0].bincount(minlength=len(names)).tolist()
    try:
        values = {label: item["map@r"] for label, item in judged.metrics.per_class().items()}
    except ValueError:  # no two images have the same label
        values = {}
    listed = [[names[label], f"{count:,}", percent(values.get(label))] for label, count in enumerate(drawn) if count]
    content = Table(["class", "images in the map", "MAP@R, percent"], listed)
    return Markup("<details><summary>The {} classes of the map</summary>{}</details>").format(
        f"{len(listed):,}", table(content, description="Classes of the map")
    )
