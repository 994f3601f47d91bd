"""Format the result of an evaluation as rows for programs and as text for people."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from proxemic.files import readable, write_text
from proxemic.metrics import (
    FEWEST_CLASSES,
    Interval,
    OpenSetIdentification,
    PairedDifference,
    RetrievalMetrics,
    paired_differences,
)
from proxemic.metrics.confidence import AveragedOver
from proxemic.runs.precision import computed_in
from proxemic.studies.evaluation.evaluated import TargetMetrics
from proxemic.studies.statistics import few_classes
from proxemic.tables import MISSING, Format, Table, counted, format_of, percent, without_nan

_IMAGES = {"unseen": "only classes not trained on", "seen": "only classes TRAINED ON"}
_NO_INTERVAL = Interval(math.nan, math.nan, math.nan)
_NO_DIFFERENCE = PairedDifference(math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class MetricTable:
    """The metrics of one model with intervals, or of two models on the same queries with differences, by name.

    ``chance`` contains the expected values of a random ranking; with None, tables for people have no such column.
    """

    values: Sequence[Mapping[str, float]]
    split: str
    level: float
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    differences: Mapping[str, PairedDifference] = field(default_factory=dict)
    chance: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls,
        models: Sequence[RetrievalMetrics] | Sequence[OpenSetIdentification],
        values: Sequence[Mapping[str, float]],
        labels: Tensor,
        split: str,
        level: float,
        resamples: int,
        *,
        average: AveragedOver = "queries",
        chance: Mapping[str, float] | None = None,
    ) -> "MetricTable":
        """Compute intervals or differences by the bootstrap over classes; 0 resamples compute neither."""
        intervals: Mapping[str, Interval] = {}
        differences: Mapping[str, PairedDifference] = {}
        options: Any = {"level": level, "resamples": resamples}
        if resamples and len(models) == 1:
            bounds = models[0].intervals(**options)
            intervals = {name: bound for name, bound in bounds.items() if not math.isnan(bound.low)}
        elif resamples:
            first, second = (
                {name: item.double() for name, item in model.per_query.items() if not math.isnan(named[name])}
                for model, named in zip(models, values, strict=True)
            )
            differences = paired_differences(first, second, labels, average=average, **options)
        return cls(values, split, level, intervals, differences, chance)

    @property
    def has_bounds(self) -> bool:
        """Whether there are intervals or differences."""
        return bool(self.intervals or self.differences)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per metric; missing values are NaN.

        The columns are metric, split, value, chance, low and high, or for two models metric, split, first, second,
        difference, low, high and p_value.
        """
        rows: list[dict[str, Any]] = []
        for name, value in self.values[0].items():
            if len(self.values) == 1:
                interval = self.intervals.get(name, _NO_INTERVAL)
                known = {"value": value, "chance": (self.chance or {}).get(name, math.nan)}
                known |= {"low": interval.low, "high": interval.high}
            else:
                second = self.values[1][name]
                known = {"first": value, "second": second} | vars(self.differences.get(name, _NO_DIFFERENCE))
                known |= {"difference": value - second}
            rows.append({"metric": name, "split": self.split} | known)
        return rows

    def cells(self, bounds: bool | None = None) -> tuple[list[str], list[list[str]]]:
        """Return header and rows for people: metrics in percent, thresholds as numbers, with intervals if any."""
        one, bounds = len(self.values) == 1, self.has_bounds if bounds is None else bounds
        header = ["metric", *([self.split] if one else ["A", "B"]), *(["chance"] if self.chance is not None else [])]
        header += [] if one else ["A - B"]
        header += [f"{100 * self.level:g}% interval"] * bounds + ["p"] * (bounds and not one)
        rows = []
        for row in self.rows():
            name, is_threshold = row["metric"], row["metric"].startswith("threshold")
            show = _number if is_threshold else percent
            cells = [name, *(show(row[key]) for key in (["value"] if one else ["first", "second"]))]
            cells += [percent(self.chance.get(name))] if self.chance is not None else []
            if not one:
                cells.append(show(row["difference"]) if is_threshold else f"{100 * row['difference']:+.2f}")
            if bounds:
                cells.append(MISSING if math.isnan(row["low"]) else f"{show(row['low'])} … {show(row['high'])}")
            if bounds and not one:
                cells.append(_number(row["p_value"]))
            rows.append(cells)
        return header, rows

    def bounds(self) -> dict[str, Any]:
        """Return the intervals and differences for JSON."""
        intervals = {name: [interval.low, interval.high] for name, interval in self.intervals.items()}
        named = {
            "intervals": intervals,
            "differences": {name: vars(difference) for name, difference in self.differences.items()},
        }
        return {name: values for name, values in named.items() if values}


def _number(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.4f}"


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one model with intervals, or of two models with their differences.

    Args:
        targets: One model or file, or two on the same queries.
        table: Metrics, intervals and differences.
        parts: Evaluations of the unseen classes and of the training classes by themselves, if there are both.
        categories: Evaluations of the queries of each category.
        prefixes: Evaluations of the first dimensions of the embeddings.
        open_set: Open-set identification, if requested.
    """

    targets: tuple[TargetMetrics, ...]
    table: MetricTable
    parts: tuple["Evaluation", ...] = ()
    categories: tuple["Evaluation", ...] = ()
    open_set: MetricTable | None = None
    prefixes: tuple["Evaluation", ...] = ()

    @classmethod
    def of(
        cls,
        targets: Sequence[TargetMetrics],
        level: float,
        resamples: int,
        *,
        trained: Sequence[int] = (),
        by_category: bool = False,
        dims: Sequence[int] = (),
    ) -> "Evaluation":
        """Compute intervals or differences by the bootstrap; 0 resamples compute neither.

        Also evaluate the classes on which a model was trained and the others, the queries of each category, and the
        first dimensions of the embeddings.
        """

        def pairs(sections: Iterable[Sequence[TargetMetrics]]) -> tuple[Evaluation, ...]:
            return tuple(cls.of(section, level, resamples) for section in zip(*sections, strict=True))

        parts = pairs(target.parts(trained) for target in targets)
        categories = pairs(target.by_category() if by_category else () for target in targets)
        prefixes = pairs(target.prefixes(dims) for target in targets)
        bootstrap, metrics = (level, resamples), [target.metrics for target in targets]
        first, split = metrics[0], targets[0].split
        # Two models have the same queries and matches, and therefore the same chance level.
        table = MetricTable.of(
            metrics, metrics, first.labels, split, *bootstrap, average=first.average, chance=first.chance
        )
        open_set = None
        if sets := [target.open_set for target in targets if target.open_set is not None]:
            found, values = [group.found for group in sets], [group.values for group in sets]
            open_set = MetricTable.of(found, values, found[0].mated.labels, "open set", *bootstrap)
        return cls(tuple(targets), table, parts, categories, open_set, prefixes)

    @property
    def intervals(self) -> Mapping[str, Interval]:
        """The interval of each metric of a single model; empty for few classes or without resamples."""
        return self.table.intervals

    @property
    def differences(self) -> Mapping[str, PairedDifference]:
        """The differences between the first and the second of two models; empty without resamples."""
        return self.table.differences

    @property
    def metrics(self) -> RetrievalMetrics:
        """The metrics of the first model."""
        return self.targets[0].metrics

    def write(self, path: Path) -> None:
        """Write to a file in the format of its suffix: ``.json``, ``.csv`` or ``.md``."""
        write_text(path, self.text(format_of(path)) + "\n")

    def text(self, form: Format = "table") -> str:
        """Return the evaluation as text."""
        if form == "json":
            return json.dumps(self._content(), indent=2)
        if form == "csv":
            return Table.of_records(self.rows()).text("csv")
        tables = [Table(*part.table.cells(), part._title(), part._notes()) for part in (self, *self.parts)]
        if self.categories:
            tables.insert(1, self._category_table())
        if self.prefixes:
            tables.append(self._prefix_table())
        if self.open_set and (first := self.targets[0].open_set):
            tables.append(Table(*self.open_set.cells(), first.title, first.notes))
        return "\n\n".join(table.text(form) for table in tables)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `MetricTable` for the whole, the categories, the parts, the prefixes and the open set.

        With categories, the first column is ``category``, which is empty for the whole.
        """
        with_category = bool(self.categories) or self.targets[0].category is not None
        rows = [
            ({"category": readable(item.targets[0].category or "")} if with_category else {}) | row
            for item in (self, *self.categories, *self.parts, *self.prefixes)
            for row in item.table.rows()
        ]
        of_open_set = self.open_set.rows() if self.open_set else []
        return rows + [({"category": ""} if with_category else {}) | row for row in of_open_set]

    def class_rows(self) -> list[dict[str, Any]]:
        """Return the first model's metrics of each class with an evaluated query, worst first."""
        target = self.targets[0]
        names = target.images.class_names
        counts = self.metrics.labels[self.metrics.evaluated].bincount()
        rows = [
            {"label": readable(names[label]), "queries": int(counts[label])} | metrics
            for label, metrics in self.metrics.per_class().items()
        ]
        return sorted(rows, key=lambda row: row[target.metric])

    def query_rows(self) -> list[dict[str, Any]]:
        """Return the first model's metrics of each evaluated query, by path or row (from 1), worst first."""
        target, metrics = self.targets[0], self.metrics
        is_query, classes, paths = target.images.is_query, target.images.class_names, target.images.names
        labels = metrics.labels.tolist()
        places = range(len(labels)) if is_query is None else is_query.nonzero().squeeze(1).tolist()
        values = {name: column.tolist() for name, column in metrics.per_query.items()}
        queries = [
            {
                "query": readable(paths[places[number]]) if paths else places[number] + 1,
                "label": readable(classes[labels[number]]),
            }
            | {name: column[number] for name, column in values.items()}
            for number in metrics.evaluated.nonzero().squeeze(1).tolist()
        ]
        return sorted(queries, key=lambda row: row[target.metric])

    def worst(self, count: int) -> list[Table]:
        """Return the first rows of `class_rows` and `query_rows` as two tables."""
        metric = self.targets[0].metric
        return [
            Table([key, metric], [[row[key], percent(row[metric])] for row in rows[:count]], f"{title} by {metric}")
            for title, key, rows in (
                ("Worst classes", "label", self.class_rows()),
                ("Hardest queries", "query", self.query_rows()),
            )
        ]

    def _category_table(self) -> Table:
        bounds = any(category.table.has_bounds for category in self.categories)
        header = ["category", "classes", "queries", *self.categories[0].table.cells(bounds)[0]]
        rows = []
        for item in self.categories:
            target = item.targets[0]
            named = [readable(target.category or ""), f"{target.classes:,}", f"{target.metrics.queries:,}"]
            first, *others = item.table.cells(bounds)[1]
            rows += [[*named, *first], *(["", "", "", *row] for row in others)]
        few = min(category.targets[0].classes for category in self.categories) < FEWEST_CLASSES
        notes = [f"A category of fewer than {FEWEST_CLASSES} classes has no honest interval."] if few else []
        return Table(header, rows, "By category; the queries of each search all images", notes)

    def _prefix_table(self) -> Table:
        whole = f"all {self.targets[0].embeddings.shape[1]}"
        names = [name for name in self.metrics if name.startswith("recall@")] or [self.targets[0].metric]
        rows = [
            [name, *(percent(target.metrics[metric]) for target in item.targets for metric in names)]
            for name, item in [*((prefix.targets[0].split, prefix) for prefix in self.prefixes), (whole, self)]
        ]
        models = ("",) if len(self.targets) == 1 else ("A ", "B ")
        header = ["numbers", *(f"{model}{name}" for model in models for name in names)]
        return Table(header, rows, "By the first dimensions of the embeddings only, in percent")

    def _content(self) -> dict[str, Any]:
        """Return the content for JSON: the metrics of one model, or of two with their differences."""
        summaries = [_summary(target) for target in self.targets]
        more: dict[str, Any] = {"level": self.table.level} if self.table.has_bounds else {}
        if self.categories:
            more["categories"] = {part.targets[0].category: part._content() for part in self.categories}
        if self.parts:
            more["parts"] = {part.targets[0].split: part._content() for part in self.parts}
        if self.prefixes:
            more["dims"] = {str(prefix.targets[0].embeddings.shape[1]): prefix._content() for prefix in self.prefixes}
        if self.open_set and (first := self.targets[0].open_set):
            more["open_set"] = (first.content() if len(summaries) == 1 else {}) | self.open_set.bounds()
        if len(summaries) == 1:
            return without_nan(summaries[0] | self.table.bounds() | more)
        models = [
            {"model": target.title} | summary | ({"open_set": target.open_set.content()} if target.open_set else {})
            for target, summary in zip(self.targets, summaries, strict=True)
        ]
        return without_nan({"models": models} | self.table.bounds() | more)

    def _title(self) -> str:
        target = self.targets[0]
        title = f"{counted(target.classes, 'class', 'classes')}, {counted(target.metrics.queries, 'query', 'queries')}"
        title += f", {_IMAGES.get(target.split, f'{target.split} images')}"
        if target.images.is_gallery is not None:
            title += f", {int(target.images.is_gallery.sum()):,} in the gallery"
        if target.metrics.average == "classes":
            title += ", averages over classes"
        title += computed_in(target.precision)
        if len(self.targets) == 1:
            return title
        return f"{title}\nA: {target.title}\nB: {self.targets[1].title}"

    def _notes(self) -> list[str]:
        target = self.targets[0]
        left_out = target.metrics.left_out
        notes = [few_classes(target.query_classes)] if few_classes(target.query_classes) else []
        notes += [f"{readable(target.name)} {target.stopped}." for target in self.targets if target.stopped]
        if target.trained_on or (target.trained_on is not None and target.split == "all"):
            of = "either model" if len(self.targets) > 1 else "the model"
            notes.append(f"By their names, {of} was trained on {target.trained_on} of these {target.classes} classes.")
        if left_out:
            have = "has" if left_out == 1 else "have"
            notes.append(f"{counted(left_out, 'query', 'queries')} {have} nothing of the class to find: left out.")
        if self.differences and "nmi" in target.metrics:
            notes.append("Clustering has no value per query to test: compare the intervals of the two models.")
        return notes


def _summary(target: TargetMetrics) -> dict[str, Any]:
    known = {} if target.trained_on is None else {"classes_trained_on": target.trained_on}
    return {
        target.split: dict(target.metrics),
        "chance": target.metrics.chance,
        **({} if target.precision is None else {"precision": target.precision}),
        **({} if target.stopped is None else {"unfinished": target.stopped}),
        "classes": target.classes,
        **known,
        **({} if target.category is not None else {"images": len(target.images)}),
        "queries": target.metrics.queries,
        "queries_left_out": target.metrics.left_out,
    }
