"""A comparison beside what the papers print of the rows that its recipes stand for."""

from collections.abc import Iterator, Mapping, Sequence

from proxemic.published import PublishedFigure
from proxemic.studies.beside_paper import SAME, PaperRow, page, tables_beside
from proxemic.studies.comparison.directory import Comparison, Result, computed_metrics
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.statistics import format_estimate


def against_paper(comparison: Comparison) -> str:
    """Markdown: the figures of the rows that each recipe stands for beside ours, and what differs in protocol."""
    results = comparison.results()
    entries = {entry.title: entry for entry in comparison.entries}

    def parts(title: str, rows: Sequence[PaperRow]) -> Iterator[str]:
        entry = entries[title]
        by_seed = results[entry]
        yield from tables_beside(
            rows,
            lambda row, figure: (figure.metric, _ours(by_seed, row, figure)),
            lambda _: (entry.recipe, len(by_seed)),
        )
        absent = {figure.metric for row in rows for figure in row.figures if not _is_computed(figure, entry)}
        if absent:
            yield f"Not among what this recipe computes: {', '.join(sorted(absent))}."

    introduction = [
        "On the test classes, in percent; average_distance_to_proxy as it is, of the training images at the chosen "
        "epoch. Ours: mean ± 95% interval over seeds, – is not measured; theirs as printed."
    ]
    if comparison.flags:
        introduction.append(f"Ours with the flags `{' '.join(comparison.flags)}`.")
    return page(introduction, {title: entry.recipe for title, entry in entries.items()}, parts, "compare")


def _ours(results: Mapping[int, Result], row: PaperRow, figure: PublishedFigure) -> str:
    is_distance = figure.metric == "average_distance_to_proxy"
    after, before = ("measured", "measured_before") if is_distance else ("test", "untrained")
    split = before if row.named.untrained else after
    estimate = mean(results, figure.metric, split) or mean(results, SAME.get(figure.metric, ""), split)
    return format_estimate(estimate, 1 if is_distance else 100) + (f" (n = {estimate.n})" if estimate else "")


def _is_computed(figure: PublishedFigure, entry: Entry) -> bool:
    callbacks = entry.recipe["training"].get("callbacks") or ()
    measured = ["avg_dtp" for each in callbacks if each["class_path"].endswith("DistanceToProxy")]
    return not {figure.metric, SAME.get(figure.metric)}.isdisjoint((*computed_metrics(entry), *measured))
