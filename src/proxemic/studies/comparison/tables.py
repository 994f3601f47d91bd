"""The tables of a comparison: CSV for programs, Markdown for people. A cell that was not measured is never filled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from proxemic.files import write_csv, write_text
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.comparison.statistics import difference, mean, seed_variation
from proxemic.studies.statistics import Estimate, format_estimate
from proxemic.tables import MISSING, Table

MARKS = {"validation": "", "test": " †", "last": " ‡"}
FOOTNOTES = {
    "test": "† the epoch was chosen on the test classes: too good beside the others.",
    "last": "‡ the last epoch was taken, whatever its value.",
}
_Results = Mapping[Entry, Mapping[int, Result]]


def write_tables(comparison: Comparison) -> None:
    """Write results, summary, differences and spread as CSV, and ``table.md``, from what is finished."""
    results = comparison.results()
    for name, header, rows in (
        ("results.csv", RESULTS, _result_rows(results)),
        ("summary.csv", SUMMARY, _summary_rows(results)),
        ("differences.csv", DIFFERENCES, _difference_rows(comparison, results)),
        ("spread.csv", SPREAD, _variation_rows(comparison, results)),
    ):
        write_csv(comparison.path / name, header, rows)
    write_text(comparison.path / "table.md", markdown(comparison, results))


RESULTS = ("recipe", "dataset", "loss", "seed", "split", "metric", "value", "epoch", "selected_on", "seconds")
SUMMARY = ("recipe", "dataset", "loss", "selected_on", "split", "metric", "mean", "half_width", "n")
DIFFERENCES = ("dataset", "recipe", "baseline", "metric", "difference", "half_width", "n", "excludes_zero")
SPREAD = ("dataset", "metric", "seeds", "recipes", "against", "ratio", "ratio_low", "ratio_high", "n")


def _result_rows(results: _Results) -> Iterator[tuple[object, ...]]:
    for entry, seeds in results.items():
        for seed, result in seeds.items():
            about = (result.epoch, result.selected_on, round(result.seconds, 3))
            for split, values in result.values.items():
                for metric, value in values.items():
                    yield (entry.title, entry.dataset, entry.loss, seed, split, metric, value, *about)


def _summary_rows(results: _Results) -> Iterator[tuple[object, ...]]:
    for entry, seeds in results.items():
        about = (entry.title, entry.dataset, entry.loss, entry.selected_on)
        for split, metric in _measured(seeds.values()):
            estimate = mean(seeds, metric, split)
            assert estimate is not None
            yield (*about, split, metric, estimate.mean, estimate.half_width, estimate.n)


def _difference_rows(comparison: Comparison, results: _Results) -> Iterator[tuple[object, ...]]:
    for dataset, entries in comparison.datasets().items():
        baseline = comparison.baseline_of(entries)
        for entry in entries:
            for split, metric in _measured(results[entry].values()):
                estimate = difference(results[entry], results[baseline], metric) if split == "test" else None
                if entry != baseline and estimate is not None:
                    excludes = {True: "yes", False: "no", None: None}[estimate.excludes_zero]
                    row = (dataset, entry.title, baseline.title, metric, estimate.mean, estimate.half_width, estimate.n)
                    yield (*row, excludes)


def _variation_rows(comparison: Comparison, results: _Results) -> Iterator[tuple[object, ...]]:
    for dataset, entries in comparison.datasets().items():
        first = comparison.shown_metrics(entries)[0]
        by_seed = [results[entry] for entry in entries]
        for split, metric in _measured(result for seeds in by_seed for result in seeds.values()):
            variation = seed_variation(by_seed, metric, first) if split == "test" else None
            if variation is not None:
                ratio = variation.ratio or (None, None, None)
                yield (dataset, metric, variation.seeds, variation.recipes, first, *ratio, variation.n)


def _measured(results: Iterable[Result]) -> list[tuple[str, str]]:
    """Return splits with their metrics, each once."""
    return list(dict.fromkeys((split, name) for each in results for split, of in each.values.items() for name in of))


def markdown(comparison: Comparison, results: _Results | None = None) -> str:
    """Write a table per data set, with what is not finished and what failed."""
    results = comparison.results() if results is None else results
    parts = [_title(comparison, results)]
    for dataset, entries in comparison.datasets().items():
        parts += [f"## {dataset}", *_tables(comparison, entries, results)]
    failures = [f"- {cell}: {cell.failure}" for cell in comparison.failed()]
    if failures:
        parts += ["## Failed", "\n".join(failures)]
    return "\n\n".join(parts) + "\n"


def _title(comparison: Comparison, results: _Results) -> str:
    cells, finished = len(list(comparison.cells())), sum(len(seeds) for seeds in results.values())
    text = (
        f"# Comparison\n\n{len(comparison.entries)} recipes × {len(comparison.seeds)} seeds "
        f"({', '.join(map(str, comparison.seeds))}), evaluated on the test classes, in percent: mean ± 95% interval "
        "over seeds (t distribution)."
    )
    if finished < cells:
        text += f" **{cells - finished} of {cells} cells are not finished**; what was not measured is {MISSING}."
    return text + (f"\n\nFlags of all recipes: `{' '.join(comparison.flags)}`" if comparison.flags else "")


def _tables(comparison: Comparison, entries: Sequence[Entry], results: _Results) -> Iterator[str]:
    metrics = comparison.shown_metrics(entries)
    means = {(entry, metric): mean(results[entry], metric) for entry in entries for metric in metrics}
    best = {metric: _best({entry: means[entry, metric] for entry in entries}) for metric in metrics}

    def cell(entry: Entry, metric: str) -> str:
        text = format_estimate(means[entry, metric])
        return f"**{text}**" if entry in best[metric] else text

    yield Table(
        ["recipe", "loss", *metrics, "seeds"],
        [
            [_name(entry), entry.loss, *(cell(entry, metric) for metric in metrics), _seeds(comparison, entry)]
            for entry in entries
        ],
        align="ll" + "r" * (len(metrics) + 1),
    ).text("markdown")
    used = {entry.selected_on for entry in entries}
    yield from (FOOTNOTES[each] for each in FOOTNOTES if each in used)
    rounded = [_name(entry) for entry in entries if entry.recipe["evaluation"]["precision"] != "32-true"]
    if rounded:
        yield f"Computed in bf16-mixed: {', '.join(rounded)}."
    from proxemic.metrics import FEWEST_CLASSES  # imports torch

    classes = [each.test_classes for entry in entries for each in results[entry].values() if each.test_classes]
    if min(classes, default=FEWEST_CLASSES) < FEWEST_CLASSES:
        yield (
            f"Few test classes: {min(classes)}. The intervals are over seeds on these classes alone: other classes may "
            "give quite other values, and other differences."
        )
    yield from _differences(comparison, entries, results)
    yield from _variations(entries, results, metrics)


def _differences(comparison: Comparison, entries: Sequence[Entry], results: _Results) -> Iterator[str]:
    metrics, baseline = comparison.shown_metrics(entries), comparison.baseline_of(entries)
    others = [entry for entry in entries if entry != baseline]
    if not others:
        return
    rows = []
    for entry in others:
        estimates = [difference(results[entry], results[baseline], metric) for metric in metrics]
        pairs = max([0, *(estimate.n for estimate in estimates if estimate)])
        rows.append([_name(entry), *map(_difference, estimates), str(pairs)])
    yield f"Difference from {_name(baseline)}, paired by seed; * where the 95% interval, each by itself, excludes 0:"
    yield Table(["recipe", *metrics, "pairs"], rows).text("markdown")


def _variations(entries: Sequence[Entry], results: _Results, metrics: Sequence[str]) -> Iterator[str]:
    by_recipe = [results[entry] for entry in entries]
    variations = {metric: seed_variation(by_recipe, metric, metrics[0]) for metric in metrics}
    rows = [
        [
            metric,
            f"{100 * variation.seeds:.2f}",
            f"{100 * variation.recipes:.2f}",
            f"{variation.separability:.1f}",
            "{:.2f} ({:.2f} to {:.2f})".format(*variation.ratio) if variation.ratio else MISSING,
        ]
        for metric, variation in variations.items()
        if variation is not None
    ]
    if rows:
        yield "Standard deviations in percent; ratios are geometric means over recipes with their 95% interval:"
        ratio = f"over seeds, to {metrics[0]}'s"
        yield Table(["metric", "over seeds", "of recipes' means", "recipes / seeds", ratio], rows).text("markdown")


def _best(means: Mapping[Entry, Estimate | None]) -> list[Entry]:
    """Those with the highest mean; what was chosen on the test classes does not compete with what was not."""
    values = {entry: estimate.mean for entry, estimate in means.items() if estimate}
    fair = {entry: value for entry, value in values.items() if entry.selected_on != "test"} or values
    return [entry for entry, value in fair.items() if value == max(fair.values())]


def _seeds(comparison: Comparison, entry: Entry) -> str:
    states = [comparison.cell(entry, seed).state for seed in comparison.seeds]
    finished, failed = states.count("finished"), states.count("failed")
    text = str(finished) if finished == len(states) else f"{finished} of {len(states)}"
    return f"{text}, {failed} failed" if failed else text


def _difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    sign = "+" if estimate.mean > 0 else ""
    return f"{sign}{format_estimate(estimate)}{' *' if estimate.excludes_zero else ''}"


def _name(entry: Entry) -> str:
    return f"`{entry.title}`{MARKS[entry.selected_on]}"
