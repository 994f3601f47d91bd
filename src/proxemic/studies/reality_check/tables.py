"""Results of a reality check as rows and as Markdown."""

from collections.abc import Mapping
from typing import NamedTuple

from proxemic.studies.statistics import format_estimate, t_interval
from proxemic.tables import Table

KINDS = ("separated", "concatenated", "complete")
METRICS = {"map@r": "MAP@R", "r_precision": "RP", "recall@1": "P@1"}

Repeats = Mapping[int, Mapping[str, Mapping[str, float]]]
"""The metrics of one loss, by repetition and kind."""


class ResultRow(NamedTuple):
    """One value, in [0, 1], of one of the `KINDS` in a repetition (from 0) of a reality check."""

    recipe: str
    repeat: int
    kind: str
    metric: str
    value: float


def result_rows(results: Mapping[str, Repeats]) -> list[ResultRow]:
    """One row per value."""
    return [
        ResultRow(recipe, number, kind, metric, value)
        for recipe, repeats in results.items()
        for number, kinds in repeats.items()
        for kind, values in kinds.items()
        for metric, value in values.items()
    ]


def markdown(results: Mapping[str, Repeats], expected: int) -> str:
    """Write the table in percent, with 95% intervals over the repetitions and dashes for missing values.

    >>> values = {kind: {"map@r": 0.25, "r_precision": 0.5, "recall@1": 0.75} for kind in KINDS}
    >>> print(markdown({"cub/softmax": {0: values}}, 1).splitlines()[2])
    | `cub/softmax` | 25.00 | 50.00 | 75.00 | 25.00 | 50.00 | 75.00 | 25.00 | 50.00 | 75.00 |
    """
    header = ["recipe", *(f"{kind} {name}" for kind in KINDS for name in METRICS.values())]
    rows = [
        [f"`{recipe}`", *(cell(repeats, kind, metric) for kind in KINDS for metric in METRICS)]
        for recipe, repeats in results.items()
    ]
    counts = {recipe: len(repeats) for recipe, repeats in results.items()}
    missing = [f"{recipe} {count}" for recipe, count in counts.items() if count < expected]
    note = f"Mean ± 95% interval (t distribution) over {expected} repetitions, in per cent, on unseen classes."
    if missing:
        note += f" Not all are done: {', '.join(missing)}."
    table = Table(header, rows).text("markdown")
    return f"{table}\n\n{note}\n"


def cell(repeats: Repeats, kind: str, metric: str) -> str:
    """Format the mean of a metric in percent with its interval, or a dash if it was not measured."""
    values = [kinds[kind][metric] for kinds in repeats.values() if metric in kinds[kind]]
    return format_estimate(t_interval(values) if values else None)
