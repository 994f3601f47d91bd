"""A comparison beside what the papers print of the rows that its recipes stand for."""

from collections.abc import Iterator, Mapping

from proxemic.protocols.beside_paper import PaperRow, elsewhere, paper_rows, tables_beside
from proxemic.protocols.comparison_directory import Comparison, Result, computed_metrics
from proxemic.protocols.comparison_entries import Entry
from proxemic.protocols.comparison_statistics import mean
from proxemic.protocols.comparison_tables import format_estimate
from proxemic.published import PublishedFigure

__all__ = ["against_paper"]

SAME = {"precision@1": "recall@1", "average_distance_to_proxy": "avg_dtp"}
"""Two names of one number: precision@1 is whether the nearest image is of the query's class, too."""


def against_paper(comparison: Comparison) -> str:
    """Markdown: for every recipe the figures of the rows that it stands for, which its key ``published`` names.

    What differs in protocol is said below the table, and what the paper does not state.
    """
    results = comparison.results()
    parts = [
        "# Ours and the papers'",
        "On the test classes, in percent; average_distance_to_proxy as it is, of the training images. Ours: mean ± 95% "
        "interval over seeds, – is not measured; theirs as printed.",
    ]
    if comparison.flags:
        parts.append(f"Ours with the flags `{' '.join(comparison.flags)}`.")
    without: dict[str, list[str]] = {}
    for entry in comparison.entries:
        rows = paper_rows(entry.recipe)
        if any(row.figures for row in rows):
            parts += [f"## {entry.title}", *_parts(entry, results[entry], rows)]
        else:
            why = (
                "stand for their rows no longer, as flags gave other data or another loss"
                if rows
                else ("name no row of the papers' tables that they stand for")
            )
            without.setdefault(why, []).append(f"`{entry.title}`")
    parts += [f"These {why}: {', '.join(names)}." for why, names in without.items()]
    return "\n\n".join(parts) + "\n"


def _parts(entry: Entry, results: Mapping[int, Result], rows: list[PaperRow]) -> Iterator[str]:
    shown = [row for each in rows if (row := each.of("compare")).figures]
    if shown:
        yield from tables_beside(
            shown,
            lambda row, figure: (figure.metric, _ours(results, row, figure)),
            lambda _: (entry.recipe, len(results)),
        )
    absent = {figure.metric for row in shown for figure in row.figures if not _is_computed(figure, entry)}
    if absent:
        yield f"Not among what this recipe computes: {', '.join(sorted(absent))}."
    yield from elsewhere(rows, "compare")


def _ours(results: Mapping[int, Result], row: PaperRow, figure: PublishedFigure) -> str:
    is_distance = figure.metric == "average_distance_to_proxy"
    after, before = ("measured", "measured_before") if is_distance else ("test", "untrained")
    split = before if row.named.untrained else after
    found = mean(results, figure.metric, split) or mean(results, SAME.get(figure.metric, ""), split)
    return format_estimate(found, 1 if is_distance else 100) + (f" (n = {found.n})" if found else "")


def _is_computed(figure: PublishedFigure, entry: Entry) -> bool:
    callbacks = entry.recipe["training"].get("callbacks") or ()
    measured = ["avg_dtp" for each in callbacks if each["class_path"].endswith("DistanceToProxy")]
    return not {figure.metric, SAME.get(figure.metric)}.isdisjoint((*computed_metrics(entry), *measured))
