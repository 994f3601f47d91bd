"""Compare the results of a comparison with the papers' figures for the table rows that its recipes reproduce."""

from collections.abc import Collection

from proxemic.published import PublishedFigure, PublishedRow
from proxemic.studies.beside_paper import SAME, page
from proxemic.studies.comparison.directory import Comparison, computed_metrics
from proxemic.studies.comparison.statistics import mean
from proxemic.studies.statistics import format_estimate


def against_paper(comparison: Comparison) -> str:
    """Write Markdown with the papers' figures next to ours, by recipe, and the differences in protocol."""
    results = {entry.title: by_seed for entry, by_seed in comparison.results().items()}
    entries = {entry.title: entry for entry in comparison.entries}

    def ours(title: str, row: PublishedRow, figure: PublishedFigure) -> tuple[str, str]:
        is_distance = figure.metric == "average_distance_to_proxy"
        after, before = ("measured", "measured_before") if is_distance else ("test", "untrained")
        split, by_seed = before if row.untrained else after, results[title]
        estimate = mean(by_seed, figure.metric, split) or mean(by_seed, SAME.get(figure.metric, ""), split)
        count = f" (n = {estimate.n})" if estimate else ""
        return figure.metric, format_estimate(estimate, 1 if is_distance else 100) + count

    def absent(title: str, metrics: Collection[str]) -> str:
        callbacks = entries[title].recipe["training"].get("callbacks") or ()
        measured = ["avg_dtp" for callback in callbacks if callback["class_path"].endswith("DistanceToProxy")]
        known = {*computed_metrics(entries[title]), *measured}
        missing = sorted(metric for metric in metrics if known.isdisjoint((metric, SAME.get(metric))))
        return f"This recipe does not compute {', '.join(missing)}." if missing else ""

    return page(
        "On the test classes, in percent; average_distance_to_proxy is a distance, measured on the training images at "
        "the selected epoch. Ours: mean ± 95% interval over seeds, – if not measured; theirs as printed.",
        {title: entry.recipe for title, entry in entries.items()},
        "compare",
        ours,
        lambda title: len(results[title]),
        flags=comparison.flags,
        remark=absent,
    )
