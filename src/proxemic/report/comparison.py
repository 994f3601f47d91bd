"""The report of a comparison: means over seeds with intervals, and differences, for each data set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from proxemic.files import write_text
from proxemic.pages import Section, chart, render_page, table
from proxemic.pages.page import check_page
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.comparison.statistics import difference, mean, metric_values
from proxemic.studies.comparison.tables import FOOTNOTES, MARKS
from proxemic.studies.statistics import Estimate, format_estimate
from proxemic.tables import MISSING, Table

_Results = Mapping[Entry, Mapping[int, Result]]
_Estimates = Mapping[Entry, Mapping[str, Estimate | None]]


def write_comparison_report(comparison: Comparison | str | Path, *, out: str | Path) -> Path:
    """Write a page about a comparison: a table, points with intervals, and differences from the baseline.

    Args:
        comparison: The result of `proxemic.compare`, or its directory.
        out: The page, ``.html``.

    Returns:
        The page.

    Raises:
        UserError: If there is no comparison, or the page cannot be written.
    """
    path = Path(out)
    check_page(path)
    if not isinstance(comparison, Comparison):
        comparison = Comparison.read(Path(comparison))
    results = comparison.results()
    sections = [_section(comparison, name, entries, results) for name, entries in comparison.datasets().items()]
    if failed := comparison.failed():
        rows = [[str(cell), cell.failure] for cell in failed]
        sections.append(Section("Failed", table(Table(["run", "why"], rows, align="ll"))))
    cells, finished = len(list(comparison.cells())), sum(len(seeds) for seeds in results.values())
    summary = (
        f"{comparison.size}, evaluated on the test classes, in percent: mean with 95% interval over {comparison.unit}s "
        "(t distribution)."
    )
    if finished < cells:
        summary += f" {cells - finished} of {cells} runs are not finished."
    if comparison.flags:
        summary += f" Flags of all recipes: {' '.join(comparison.flags)}"
    write_text(path, render_page(f"Comparison {comparison.path.name}", sections, summary=summary))
    return path


def _section(comparison: Comparison, name: str, entries: Sequence[Entry], results: _Results) -> Section:
    metrics, baseline = comparison.shown_metrics(entries), comparison.baseline_of(entries)
    means = {entry: {metric: mean(results[entry], metric) for metric in metrics} for entry in entries}
    rows = [
        [_name(entry), entry.loss, *map(format_estimate, means[entry].values()), len(results[entry])]
        for entry in entries
    ]
    notes = [FOOTNOTES[item] for item in FOOTNOTES if item in {entry.selected_on for entry in entries}]
    shown = _points(
        means,
        results,
        metrics,
        "percent",
        f"means over {comparison.unit}s with 95% intervals, and single {comparison.unit}s",
        comparison.unit,
    )
    align = "ll" + "r" * (len(metrics) + 1)
    header = ["recipe", "loss", *metrics, f"{comparison.unit}s"]
    shown += table(Table(header, rows, notes=notes, align=align), description=name)
    others = [entry for entry in entries if entry != baseline]
    if not others:
        return Section(name, shown)
    less = {
        entry: {metric: difference(results[entry], results[baseline], metric) for metric in metrics} for entry in others
    }
    paired = f"paired by {comparison.unit}"
    title = f"Difference from {baseline.title}, {paired}; * if the 95% interval, each by itself, excludes 0"
    cells = [[_name(entry), *map(_difference, of.values()), _pairs(of)] for entry, of in less.items()]
    shown += Markup("<h3>{}</h3>").format("Differences")
    shown += _points(less, {}, metrics, "percent more", f"differences from {baseline.title}, {paired}")
    return Section(name, shown + table(Table(["recipe", *metrics, "pairs"], cells, title)))


def _points(
    estimates: _Estimates, results: _Results, metrics: Sequence[str], unit: str, said: str, number: str = "seed"
) -> Markup:
    """Draw a chart for each metric, one below the other; seeds or other numbers, if given, are small points."""
    names = [_name(entry) for entry in estimates]
    charts = Markup()
    for metric in metrics:
        values = [
            {"recipe": _name(entry), "value": round(100 * estimate.mean, 4)} | _ends(estimate)
            for entry, of in estimates.items()
            if (estimate := of[metric]) is not None
        ]
        if not values:
            continue
        seeds = [
            {"recipe": _name(entry), "value": round(100 * value, 4), number: seed}
            for entry, of in results.items()
            if entry in estimates
            for seed, value in metric_values(of, metric).items()
        ]
        charts += chart(
            _spec(values, seeds, names, f"{metric}, {unit}"), f"{metric}: {said}; the table has the values."
        )
    return charts


def _spec(
    values: Sequence[Mapping[str, object]], seeds: Sequence[Mapping[str, object]], names: Sequence[str], title: str
) -> dict[str, Any]:
    y = {"field": "recipe", "type": "nominal", "sort": [*names], "title": None}
    x = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": False}, "axis": {"tickCount": 8}}
    bounded = [value for value in values if "low" in value]
    ends = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "y": y}
    layers = [
        {"data": {"values": bounded}, "mark": {"type": "rule", "strokeWidth": 2}, "encoding": ends},
        {
            "data": {"values": seeds},
            "mark": {"type": "point", "opacity": 0.6, "size": 20, "tooltip": True},
            "encoding": {"x": x, "y": y},
        },
        {
            "data": {"values": values},
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 70, "tooltip": {"content": "data"}},
            "encoding": {"x": x, "y": y},
        },
    ]
    if "more" in title:
        zero = {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": 0}}}
        layers.insert(0, zero | {"data": {"values": [{}]}})
    kept = [layer for layer in layers if layer["data"]["values"]]  # Vega warns of a scale without values
    return {"height": 24 * len(names) + 10, "layer": kept}


def _ends(estimate: Estimate) -> dict[str, float]:
    if estimate.half_width is None:
        return {}
    low, high = estimate.mean - estimate.half_width, estimate.mean + estimate.half_width
    return {"low": round(100 * low, 4), "high": round(100 * high, 4)}


def _difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    return f"{'+' if estimate.mean > 0 else ''}{format_estimate(estimate)}{' *' if estimate.excludes_zero else ''}"


def _pairs(of: Mapping[str, Estimate | None]) -> int:
    return max([0, *(estimate.n for estimate in of.values() if estimate)])


def _name(entry: Entry) -> str:
    return entry.title + MARKS[entry.selected_on]
