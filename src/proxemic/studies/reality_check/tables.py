"""Format the results of a reality check as rows, as Markdown, and next to the papers' Tables VI to VIII."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from proxemic.published import PublishedFigure, PublishedRow
from proxemic.studies.beside_paper import SAME, page
from proxemic.studies.reality_check.directory import RealityCheck, all_training_classes
from proxemic.studies.statistics import format_estimate, t_interval
from proxemic.tables import Table

KINDS = ("separated", "concatenated", "concatenated unnormalized", "complete")
"""Kinds of embeddings: the folds' models alone (averaged), their concatenation, and one model of all classes.

Each part of the concatenated embeddings has unit length. If the network does not normalise its embeddings, they are
also evaluated unnormalized.
"""
METRICS = {"map@r": "MAP@R", "r_precision": "RP", "recall@1": "P@1"}

Repeats = Mapping[int, Mapping[str, Mapping[str, float]]]
"""Metrics of one loss, by repetition and kind."""


class ResultRow(NamedTuple):
    """A value in [0, 1] of a metric, for a repetition (from 0) and one of the `KINDS` of embeddings."""

    recipe: str
    repeat: int
    kind: str
    metric: str
    value: float


def result_rows(results: Mapping[str, Repeats]) -> list[ResultRow]:
    """Return one row per value."""
    return [
        ResultRow(recipe, number, kind, metric, value)
        for recipe, repeats in results.items()
        for number, kinds in repeats.items()
        for kind, values in kinds.items()
        for metric, value in values.items()
    ]


def markdown(results: Mapping[str, Repeats], expected: int) -> str:
    """Write the table in percent, with 95% intervals over the repetitions; missing values are dashes.

    >>> values = {"map@r": 0.25, "r_precision": 0.5, "recall@1": 0.75}
    >>> print(markdown({"cub/softmax": {0: {"separated": values, "complete": values}}}, 1).splitlines()[2])
    | `cub/softmax` | 25.00 | 50.00 | 75.00 | – | – | – | 25.00 | 50.00 | 75.00 |
    """
    measured = {kind for repeats in results.values() for values in repeats.values() for kind in values}
    kinds = [kind for kind in KINDS if kind in measured or kind != "concatenated unnormalized"]
    header = ["recipe", *(f"{kind} {name}" for kind in kinds for name in METRICS.values())]
    rows = [
        [f"`{recipe}`", *(cell(repeats, kind, metric) for kind in kinds for metric in METRICS)]
        for recipe, repeats in results.items()
    ]
    note = f"Mean ± 95% interval (t distribution) over {expected} repetitions, in per cent, on unseen classes."
    if missing := [f"{recipe} {len(repeats)}" for recipe, repeats in results.items() if len(repeats) < expected]:
        note += f" Unfinished: {', '.join(missing)}."
    return f"{Table(header, rows).text('markdown')}\n\n{note}\n"


def cell(repeats: Repeats, kind: str, metric: str) -> str:
    """Format the mean of a metric in percent with its interval, or a dash if it was not measured."""
    values = [kinds[kind][metric] for kinds in repeats.values() if metric in kinds.get(kind, ())]
    return format_estimate(t_interval(values) if values else None)


def reality_against_paper(
    check: RealityCheck, recipes: Mapping[str, Mapping[str, Any]], results: Mapping[str, Repeats]
) -> str:
    """Write Markdown with the results of a check, by recipe, next to the papers' tables."""

    def ours(title: str, row: PublishedRow, figure: PublishedFigure) -> tuple[str, str]:
        value = cell(results[title], figure.variant, SAME.get(figure.metric, figure.metric))
        return f"{figure.variant} {figure.metric}", value

    def evaluated(title: str, figure: PublishedFigure) -> dict[str, Any]:
        # With the evaluated embedding size, and all training classes, which the folds share.
        recipe, folds = recipes[title], 1 if figure.variant == "separated" else check.folds
        return {
            **recipe,
            "data": all_training_classes(recipe["data"]),
            "model": {**recipe["model"], "embedding_size": folds * check.embedding_size},
            "evaluation": {**recipe["evaluation"], "select_on": "validation"},
        }

    return page(
        f"On the test classes, in percent. Ours: mean ± 95% interval over {check.repeats} repetitions, with the best "
        f"of {check.trials} trials; theirs as printed.",
        recipes,
        "reality-check",
        ours,
        lambda title: len(results[title]),
        flags=check.flags,
        evaluated=evaluated,
    )
