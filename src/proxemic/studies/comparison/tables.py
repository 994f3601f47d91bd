"""Write the tables of a comparison as CSV and Markdown; missing values stay missing."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import stdev

from proxemic.files import write_csv, write_text
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.entries import Entry
from proxemic.studies.comparison.statistics import difference, mean, paired_differences, seed_variation
from proxemic.studies.statistics import Estimate, format_estimate, found_effect, t_interval
from proxemic.tables import MISSING, Table

MARKS = {"validation": "", "test": " †", "last": " ‡"}
FOOTNOTES = {
    "test": "† the epoch was selected on the test classes: the values are too good to compare with the others.",
    "last": "‡ the last epoch was kept, whatever its value.",
}
_Results = Mapping[Entry, Mapping[int, Result]]


def write_tables(comparison: Comparison) -> None:
    """Write results, summary, differences and spread as CSV, and ``table.md``, from the finished runs."""
    results = comparison.results()
    for name, header, rows in (
        ("results", "recipe dataset loss seed split metric value epoch selected_on seconds", _result_rows(results)),
        ("summary", "recipe dataset loss selected_on split metric mean half_width n", _summary_rows(results)),
        (
            "differences",
            "dataset recipe baseline metric difference half_width n excludes_zero",
            _difference_rows(comparison, results),
        ),
        (
            "spread",
            "dataset metric seeds recipes against ratio ratio_low ratio_high n",
            _variation_rows(comparison, results),
        ),
    ):
        write_csv(comparison.path / f"{name}.csv", header.split(), rows)
    if comparison.configurations:
        header = ["recipe", "configuration", "metric", "value", *comparison.configurations[0]]
        write_csv(comparison.path / "configurations.csv", header, _configuration_rows(comparison, results))
    write_text(comparison.path / "table.md", markdown(comparison, results))


def _result_rows(results: _Results) -> Iterator[tuple[object, ...]]:
    for entry, seeds in results.items():
        for seed, result in seeds.items():
            about = (result.epoch, result.selected_on, round(result.seconds, 3))
            for split, values in result.values.items():
                for metric, value in values.items():
                    yield (entry.title, entry.dataset, entry.loss, seed, split, metric, value, *about)


def _summary_rows(results: _Results) -> Iterator[tuple[object, ...]]:
    for entry, seeds in results.items():
        splits = [item for result in seeds.values() for item in result.values.items()]
        for split, metric in dict.fromkeys((split, metric) for split, values in splits for metric in values):
            estimate = mean(seeds, metric, split)
            assert estimate is not None
            about = (entry.title, entry.dataset, entry.loss, entry.selected_on, split, metric)
            yield (*about, estimate.mean, estimate.half_width, estimate.n)


def _difference_rows(comparison: Comparison, results: _Results) -> Iterator[tuple[object, ...]]:
    for dataset, entries in comparison.datasets().items():
        baseline = comparison.baseline_of(entries)
        for entry in entries:
            for metric in _tested(results[entry]) if entry != baseline else ():
                if found := difference(results[entry], results[baseline], metric):
                    excludes = {True: "yes", False: "no", None: None}[found.excludes_zero]
                    about = (dataset, entry.title, baseline.title, metric)
                    yield (*about, found.mean, found.half_width, found.n, excludes)


def _variation_rows(comparison: Comparison, results: _Results) -> Iterator[tuple[object, ...]]:
    for dataset, entries in comparison.datasets().items():
        first, by_seed = comparison.shown_metrics(entries)[0], [results[entry] for entry in entries]
        for metric in dict.fromkeys(metric for seeds in by_seed for metric in _tested(seeds)):
            if found := seed_variation(by_seed, metric, first):
                interval = found.interval or (None, None)
                yield (dataset, metric, found.seeds, found.recipes, first, found.ratio, *interval, found.n)


def _tested(seeds: Mapping[int, Result]) -> list[str]:
    """Return the test metrics of a recipe."""
    return list(dict.fromkeys(metric for result in seeds.values() for metric in result.values.get("test", ())))


def markdown(comparison: Comparison, results: _Results | None = None) -> str:
    """Write Markdown with a table per data set, and a list of unfinished and failed runs."""
    results = comparison.results() if results is None else results
    cells, finished = len(list(comparison.cells())), sum(len(seeds) for seeds in results.values())
    unit = comparison.unit
    shown = f" ({', '.join(map(str, comparison.seeds))})" if unit == "seed" else ""
    title = (
        f"{comparison.size}{shown}, evaluated on the test classes, in percent: mean ± 95% interval over {unit}s "
        "(t distribution)."
    )
    if finished < cells:
        title += f" **{cells - finished} of {cells} cells are not finished**; {MISSING} stands for missing values."
    parts = ["# Comparison", title]
    if comparison.flags:
        parts.append(f"Flags of all recipes: `{' '.join(comparison.flags)}`")
    for dataset, entries in comparison.datasets().items():
        parts += [f"## {dataset}", *_tables(comparison, entries, results)]
    if failed := comparison.failed():
        parts += ["## Failed", "\n".join(f"- {cell}: {cell.failure}" for cell in failed)]
    return "\n\n".join(parts) + "\n"


def _tables(comparison: Comparison, entries: Sequence[Entry], results: _Results) -> Iterator[str]:
    metrics, baseline = comparison.shown_metrics(entries), comparison.baseline_of(entries)
    names = {entry: f"`{entry.title}`{MARKS[entry.selected_on]}" for entry in entries}
    means = {(entry, metric): mean(results[entry], metric) for entry in entries for metric in metrics}
    # Epochs that were selected on the test classes do not compete for the best result.
    fair = [entry for entry in entries if entry.selected_on != "test" and results[entry]] or entries

    def cell(entry: Entry, metric: str) -> str:
        best = max((found.mean for item in fair if (found := means[item, metric])), default=None)
        found, text = means[entry, metric], format_estimate(means[entry, metric])
        return f"**{text}**" if entry in fair and found and found.mean == best else text

    def seeds(entry: Entry) -> str:
        states = [comparison.cell(entry, seed).state for seed in comparison.seeds]
        finished, failed = states.count("finished"), states.count("failed")
        text = str(finished) if finished == len(states) else f"{finished} of {len(states)}"
        return f"{text}, {failed} failed" if failed else text

    rows = [[names[entry], entry.loss, *(cell(entry, metric) for metric in metrics), seeds(entry)] for entry in entries]
    header = ["recipe", "loss", *metrics, f"{comparison.unit}s"]
    yield Table(header, rows, align="ll" + "r" * (len(metrics) + 1)).text("markdown")
    yield from (note for split, note in FOOTNOTES.items() if split in {entry.selected_on for entry in entries})
    if rounded := [names[entry] for entry in entries if entry.recipe["evaluation"]["precision"] != "32-true"]:
        yield f"Computed in bf16-mixed: {', '.join(rounded)}."
    from proxemic.metrics import FEWEST_CLASSES  # imports torch

    classes = [result.test_classes for entry in entries for result in results[entry].values() if result.test_classes]
    if min(classes, default=FEWEST_CLASSES) < FEWEST_CLASSES:
        yield (
            f"Few test classes: {min(classes)}. The intervals are over {comparison.unit}s on these classes only: other "
            "classes may give quite different values and differences."
        )
    if comparison.configurations:
        yield from _paired(comparison, entries, results)
        return
    rows = []
    for entry in entries:
        if entry != baseline:
            found = [difference(results[entry], results[baseline], metric) for metric in metrics]
            pairs = max([0, *(item.n for item in found if item)])
            rows.append([names[entry], *map(_difference, found), str(pairs)])
    if rows:
        first = names[baseline]
        yield f"Difference from {first}, paired by seed; * if the 95% interval, each by itself, excludes 0:"
        yield Table(["recipe", *metrics, "pairs"], rows).text("markdown")
    by_recipe = [results[entry] for entry in entries]
    variations = {metric: seed_variation(by_recipe, metric, metrics[0]) for metric in metrics}
    rows = [
        [
            metric,
            f"{100 * found.seeds:.2f}",
            f"{100 * found.recipes:.2f}",
            f"{found.separability:.1f}",
            found.ratio_text(),
        ]
        for metric, found in variations.items()
        if found is not None
    ]
    if rows:
        yield "Standard deviations in percent; ratios are geometric means over recipes with their 95% interval:"
        ratio = f"over seeds, to {metrics[0]}'s"
        yield Table(["metric", "over seeds", "of recipes' means", "recipes / seeds", ratio], rows).text("markdown")
        if any(found.ratio is not None and found.interval is None for found in variations.values() if found):
            yield (
                "A ratio without an interval: with so few recipes and seeds, one of its two standard deviations may be "
                "0, and the ratio any number."
            )


def _paired(comparison: Comparison, entries: Sequence[Entry], results: _Results) -> Iterator[str]:
    """Tabulate the mean difference of paired configurations, and the effect that this many pairs would find."""
    baseline, (metric, *_) = comparison.baseline_of(entries), comparison.shown_metrics(entries)
    rows = []
    for entry in entries:
        found = paired_differences(results[entry], results[baseline], metric) if entry != baseline else []
        if len(found) > 2:
            deviation = stdev(found)
            effect = f"{100 * found_effect(deviation, len(found)):.2f}" if deviation else MISSING
            shown = _difference(t_interval(found))
            rows.append([f"`{entry.title}`", shown, str(len(found)), f"{100 * deviation:.2f}", effect])
    if rows:
        yield (
            f"Difference in {metric} from `{baseline.title}`, paired by configuration: mean ± 95% interval over "
            "configurations; * if the interval excludes 0. The last column is the smallest mean difference that "
            "this many pairs find with 80% power:"
        )
        columns = ["recipe", "difference", "pairs", "standard deviation", "effect found"]
        yield Table(columns, rows).text("markdown")
    if comparison.failed():
        yield "Pairs with a failed run are missing, which favours the recipe that fails more often."


def _configuration_rows(comparison: Comparison, results: _Results) -> Iterator[tuple[object, ...]]:
    for entry, found in results.items():
        metric = comparison.shown_metrics([entry])[0]
        for number, values in enumerate(comparison.configurations):
            result = found.get(number)
            value = None if result is None else result.values["test"].get(metric)
            yield (entry.title, number, metric, value, *values.values())


def _difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return MISSING
    sign = "+" if estimate.mean > 0 else ""
    return f"{sign}{format_estimate(estimate)}{' *' if estimate.excludes_zero else ''}"
