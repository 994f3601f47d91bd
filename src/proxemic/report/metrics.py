"""Sections of metrics: values with intervals, next to the network before training, and differences from other runs."""

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from proxemic.metrics import Interval, paired_differences
from proxemic.pages import Section, chart, table
from proxemic.report.judged import Judged
from proxemic.runs.precision import computed_in
from proxemic.runs.verdict import BEFORE
from proxemic.studies.finished import FinishedRun
from proxemic.studies.statistics import few_classes
from proxemic.tables import MISSING, Table, counted, percent

_LEVEL = 0.95


def metrics(judged: Judged) -> Section:
    """Tabulate the metrics of a run and of others, with intervals, next to the networks before training and chance."""
    found = judged.metrics
    columns = {judged.name: found, **{f"{other.name} (other)": other.metrics for other in judged.others}}
    columns |= {BEFORE[name]: item for name, item in judged.metrics_before.items()}
    intervals = {name: column.intervals(level=_LEVEL) for name, column in columns.items() if column is not found}
    intervals = {judged.name: judged.intervals, **intervals}
    rows = [
        [metric, *(_cell(interval.get(metric)) for interval in intervals.values()), percent(found.chance.get(metric))]
        for metric in found
    ]
    classes = len(found.labels[found.evaluated].unique())
    title = f"{judged.split}: {counted(classes, 'class', 'classes')}, {counted(found.queries, 'query', 'queries')}; "
    title += "in percent"
    if any(not math.isnan(item.low) for column in intervals.values() for item in column.values()):
        title += f", with {100 * _LEVEL:g}% intervals of a bootstrap over classes"
    title += computed_in(judged.config.precision)
    notes = [note for note in (few_classes(classes), _left_out(found.left_out), _before(judged)) if note]
    shown = table(Table(["metric", *columns, "chance"], rows, title, notes))
    return Section("Metrics", points(intervals) + shown)


def recorded_metrics(run: FinishedRun) -> Section:
    """Tabulate the metrics that a run has recorded; they have no intervals."""
    recorded = run.metrics or {}
    split = "test" if "test" in recorded else "validation"
    ending = "" if split == "test" else "validation_"
    names = {split: run.name, **{f"{ending}{name}": said for name, said in BEFORE.items()}, "chance": "chance"}
    columns = {said: recorded[name] for name, said in names.items() if name in recorded}
    if not columns:
        return Section("Metrics", Markup("<p>The run held no classes out, so it has no metrics.</p>"))
    rows = [[metric, *(percent(column.get(metric)) for column in columns.values())] for metric in columns[run.name]]
    title = f"{split}, in percent, as the run recorded them; without its images there are no intervals"
    title += computed_in(recorded.get("precision"))
    values = {
        said: {metric: Interval(value, math.nan, math.nan) for metric, value in column.items()}
        for said, column in columns.items()
        if said != "chance"
    }
    return Section("Metrics", points(values) + table(Table(["metric", *columns], rows, title)))


def differences(judged: Judged) -> Section | None:
    """Tabulate the differences between a run and the others, paired by query."""
    own, tables = judged.metrics, Markup()
    for other in judged.others:
        found = paired_differences(
            own.per_query, other.metrics.per_query, own.labels, average=own.average, level=_LEVEL
        )
        rows = [
            [metric, f"{100 * item.difference:+.2f}", _bounds(item.low, item.high), f"{item.p_value:.3f}"]
            for metric, item in found.items()
        ]
        title = f"{judged.name} less {other.name}, in percent, on the same queries"
        tables += table(Table(["metric", "difference", "95% interval", "p"], rows, title))
    if not tables:
        return None
    note = "The bootstrap draws whole classes, the test exchanges them; p is not corrected for the number of metrics."
    return Section("Differences", tables + Markup("<p><small>{}</small></p>").format(note))


def points(values: Mapping[str, Mapping[str, Interval]]) -> Markup:
    """Draw a chart of the values of each model, with their intervals if there are any."""
    names = [*values]
    order = list(dict.fromkeys(metric for value in values.values() for metric in value))
    data = [
        {"metric": metric, "model": name, "value": round(100 * item.value, 4), **_ends(item)}
        for name, of in values.items()
        for metric, item in of.items()
        if not math.isnan(item.value)
    ]
    bounded = [item for item in data if "low" in item]  # Vega warns of a scale without values
    place = {
        "y": {"field": "metric", "type": "nominal", "sort": order, "title": None},
        "yOffset": {"field": "model", "type": "nominal", "sort": names},
        # One legend shows colours and shapes if both name their domain.
        "color": {"field": "model", "type": "nominal", "scale": {"domain": names}, "title": None},
    }
    value: dict[str, Any] = {"field": "value", "type": "quantitative", "title": "percent", "scale": {"zero": False}}
    value["axis"] = {"tickCount": 8}
    tip = [{"field": field, "type": kind} for field, kind in (("model", "nominal"), ("metric", "nominal"))]
    numbers = ("value", "low", "high") if bounded else ("value",)
    tip += [{"field": field, "type": "quantitative", "format": ".2f"} for field in numbers]
    ends = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    lines = {"data": {"values": bounded}, "mark": {"type": "rule", "strokeWidth": 2}, "encoding": ends}
    marks = {
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 60},
        "encoding": {"x": value, "shape": place["color"], "tooltip": tip},
    }
    spec = {
        "data": {"values": data},
        "height": len(order) * max(24, 12 * len(names) + 8),
        "encoding": place,
        "layer": [*([lines] if bounded else []), marks],
    }
    said = "Values of the metrics as points" + (", with their intervals as lines" if bounded else "")
    return chart(spec, f"{said}; the table has the values.")


def _ends(found: Interval) -> dict[str, float]:
    return {} if math.isnan(found.low) else {"low": round(100 * found.low, 4), "high": round(100 * found.high, 4)}


def _cell(found: Interval | None) -> str:
    if found is None:
        return MISSING
    bounds = _bounds(found.low, found.high)
    return percent(found.value) + (f" ({bounds})" if bounds != MISSING else "")


def _bounds(low: float, high: float) -> str:
    return MISSING if math.isnan(low) else f"{percent(low)} … {percent(high)}"


def _before(judged: Judged) -> str:
    """Explain the columns of the networks before training."""
    if not judged.before or judged.run is None:
        return ""
    model = judged.run.content["model"]
    weights = "pretrained" if model.get("pretrained") or model.get("weights") else "random"
    return (
        f"Before training, the network has {weights} weights: its pooled features are the embeddings, or those of the "
        "new head with which training begins."
    )


def _left_out(queries: int) -> str:
    have = "query has" if queries == 1 else "queries have"
    return (
        f"{queries:,} {have} no other image of the class and {'is' if queries == 1 else 'are'} left out."
        if queries
        else ""
    )
