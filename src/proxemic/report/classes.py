"""Sections about classes: those that are confused most, and distances within and between them."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from markupsafe import Markup
from torch import Tensor

from proxemic.analysis import confused_pairs
from proxemic.metrics.exact import Distance, all_distances
from proxemic.pages import Section, chart, table
from proxemic.report.judged import Judged, name_of, render, shown
from proxemic.runs.verdict import BEFORE
from proxemic.tables import Table, counted, percent

_PAIRS, _EXAMPLES, _LISTED = 8, 2, 30


def confused(judged: Judged) -> Section | None:
    """List pairs of classes by the queries of either whose nearest neighbour belongs to the other."""
    labels, names, near = judged.images.labels, judged.images.class_names, judged.found
    if not near.neighbours.shape[1] or len(names) < 2:
        return None
    nearest = near.neighbours[:, 0]
    found = confused_pairs(labels[near.queries], labels[nearest].masked_fill(nearest < 0, -1), near.distances[:, 0])
    wrong = sum(pair.count for pair in found)
    said = f"For {wrong:,} of {counted(len(near.queries), 'query', 'queries')}, the nearest image shows another class"
    said += f", in {counted(len(found), 'pair')} of classes." if found else "."
    pairs = [
        {
            "names": [names[class_] for class_ in pair.classes],
            "count": pair.count,
            "queries": pair.queries,
            "examples": [
                {
                    "pictures": [shown(judged, row, alt) for row, alt in ((one, "query"), (other, "its nearest"))],
                    "labels": [names[int(labels[row])] for row in (one, other)],
                    "paths": [name_of(judged, row) for row in (one, other)],
                    "distance": float(near.distances[place, 0]),
                }
                for place in pair.examples[:_EXAMPLES].tolist()
                for one, other in [(int(near.queries[place]), int(nearest[place]))]
            ],
        }
        for pair in found[:_PAIRS]
    ]
    rows = [
        [*(names[class_] for class_ in pair.classes), f"{pair.count:,}", f"{pair.queries:,}", percent(pair.share)]
        for pair in found[:_LISTED]
    ]
    title = (
        f"The first {_LISTED} of {len(found):,} pairs" if len(found) > _LISTED else f"All {counted(len(found), 'pair')}"
    )
    listed = Table(["class", "other class", "confused", "queries of both", "percent"], rows, align="llrrr")
    return Section(
        "Confused classes",
        render(
            "confused.html", said=said, pairs=pairs, title=title, table=table(listed, description=title) if rows else ""
        ),
    )


_MOST, _BINS = 1500, 60  # images, about a million pairs, and bins of the chart
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def distances(judged: Judged) -> Section | None:
    """Plot the distances of pairs within and between classes, by the trained network and by those before training."""
    labels = judged.images.labels
    known = (labels >= 0).nonzero().squeeze(1)
    if len(known) > _MOST:
        known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:_MOST]]
    pairs = torch.ones(len(known), len(known), dtype=torch.bool).triu(1)
    same = (labels[known][:, None] == labels[known])[pairs]
    if not bool(same.any()) or bool(same.all()):
        return None
    models = {judged.name: judged.embeddings, **{BEFORE[name]: item for name, item in judged.before.items()}}
    found = {name: _distances(model[known], judged.config.distance)[pairs] for name, model in models.items()}
    quantiles = [
        [f"{name}, {side}", *(f"{value:.3f}" for value in _quantiles(item[chosen]))]
        for name, item in found.items()
        for side, chosen in (("within", same), ("between", ~same))
    ]
    title = f"Quantiles of the {judged.config.distance} distance of {len(same):,} pairs of {len(known):,} images"
    threshold, said = _threshold(judged)
    shown = chart(
        _spec(found[judged.name], same, threshold, judged.config.distance),
        "How far apart two images of one class are (within), and two of different classes (between)"
        + (", with the threshold that was learnt as a line." if threshold else "."),
    )
    table_of = Table(["pairs", *(f"{100 * item:g}%" for item in _QUANTILES)], quantiles, title)
    return Section("Distances", shown + table(table_of) + said)


def _distances(rows: Float[Tensor, "rows dim"], distance: Distance) -> Float[Tensor, "rows rows"]:
    return all_distances(rows, rows, distance).double()


def _quantiles(values: Float[Tensor, " pairs"]) -> list[float]:
    ordered = values.sort().values  # torch.quantile refuses more than 16 million
    return [float(ordered[round(item * (len(ordered) - 1))]) for item in _QUANTILES]


def _threshold(judged: Judged) -> tuple[dict[str, float], Markup]:
    """Return the threshold that was learnt for the gallery or run, by its name, and a sentence about it."""
    learnt = judged.calibration
    if learnt is None and judged.run is None:
        return {}, Markup()
    if learnt is None:
        said = "No threshold was learnt; proxemic calibrate learns one."
        return {}, Markup("<p><small>{}</small></p>").format(said)
    named = {f"false accepts {100 * learnt.rate:g} %": learnt.threshold} if learnt.threshold >= 0 else {}
    return named, table(learnt.table())


def _spec(
    found: Float[Tensor, " pairs"], same: Bool[Tensor, " pairs"], threshold: dict[str, float], distance: str
) -> dict[str, Any]:
    high = float(found.max()) or 1.0
    edges = torch.linspace(0, high, _BINS + 1, dtype=torch.float64)
    data = []
    for side, chosen in (("within", same), ("between", ~same)):
        counts = torch.histc(found[chosen], _BINS, 0, high) / int(chosen.sum())
        data += [
            {"distance": round(float(low), 5), "end": round(float(end), 5), "share": float(count), "pairs": side}
            for low, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    title = f"{distance} distance"
    spec: dict[str, Any] = {
        "height": 220,
        "layer": [
            {
                "data": {"values": data},
                "mark": {"type": "bar", "opacity": 0.55, "tooltip": True},
                "encoding": {
                    "x": {"field": "distance", "type": "quantitative", "title": title, "bin": {"binned": True}},
                    "x2": {"field": "end"},
                    "y": {
                        "field": "share",
                        "type": "quantitative",
                        "stack": None,
                        "title": "fraction of pairs",
                        "axis": {"format": "%"},
                    },
                    "color": {"field": "pairs", "type": "nominal", "title": None, "sort": ["within", "between"]},
                },
            }
        ],
    }
    if threshold:
        lines = [{"threshold": value, "of": name} for name, value in threshold.items()]
        place = {"field": "threshold", "type": "quantitative"}
        spec["layer"] += [
            {
                "data": {"values": lines},
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": {"x": place},
            },
            {
                "data": {"values": lines},
                "mark": {"type": "text", "align": "left", "dx": 4, "baseline": "top"},
                "encoding": {"x": place, "y": {"value": 0}, "text": {"field": "of"}},
            },
        ]
    return spec
