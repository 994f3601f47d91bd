"""What was found, as a table, JSON, CSV or Markdown."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.cli.evaluate.checks import FORMATS
from proxemic.cli.evaluate.judged import Judged
from proxemic.cli.show import few_classes, format_table
from proxemic.files import readable, write_text
from proxemic.metrics import FEWEST_CLASSES, Interval, PairedDifference, paired_differences

__all__ = [
    "Report",
    "class_rows",
    "csv_text",
    "markdown_table",
    "print_worst",
    "query_rows",
    "write_table",
]

Record = Mapping[str, Any]


_IMAGES = {"unseen": "classes not trained on alone", "seen": "classes TRAINED ON alone"}


class Report:
    """One model with intervals, or two and how they differ.

    Args:
        judged: One or two, on the same queries.
        level: Of the intervals.
        resamples: Of the bootstrap; 0 leaves intervals and tests out.
    """

    def __init__(self, judged: Sequence[Judged], level: float, resamples: int) -> None:
        self.judged, self.level = judged, level
        self.intervals: dict[str, Interval] = {}
        self.differences: dict[str, PairedDifference] = {}
        first = judged[0].metrics
        if resamples and len(judged) == 1:
            found = first.intervals(level=level, resamples=resamples)
            self.intervals = {name: each for name, each in found.items() if not math.isnan(each.low)}
        elif resamples:
            self.differences = paired_differences(
                first.per_query,
                judged[1].metrics.per_query,
                first.labels,
                average=first.average,
                level=level,
                resamples=resamples,
            )
        parts = zip(*(each.parts for each in judged), strict=True)
        self.parts = [Report(part, level, resamples) for part in parts]
        categories = zip(*(each.categories for each in judged), strict=True)
        self.categories = [Report(category, level, resamples) for category in categories]

    def write(self, path: Path) -> None:
        """Write to a file in the format of its name."""
        write_text(path, self.text(FORMATS[path.suffix.lower()]) + "\n")

    def text(self, form: str) -> str:
        """The whole of it: as json, csv, markdown or table."""
        if form == "json":
            return json.dumps(self._content(), indent=2)
        if form == "csv":
            reports = (self, *self.categories, *self.parts)
            return csv_text([each._named(record) for each in reports for record in each._records()])
        whole, *parts = [each._table(form) for each in (self, *self.parts)]
        return "\n\n".join([whole, *([self._category_table(form)] if self.categories else []), *parts])

    def _named(self, record: Record) -> Record:
        """With its category, which all records of a file have or none."""
        known = any(each.categories or each.category is not None for each in self.judged)
        return {"category": readable(self.judged[0].category or ""), **record} if known else record

    def _table(self, form: str) -> str:
        cells = self._cells(bool(self.intervals or self.differences))
        return _laid_out(form, self._title(), *cells, self._remarks())

    def _category_table(self, form: str) -> str:
        """One table of all categories, a row a metric of each."""
        bounds = any(each.intervals or each.differences for each in self.categories)
        header = ["category", "classes", "queries", *self.categories[0]._cells(bounds)[0]]
        rows = []
        for each in self.categories:
            judged = each.judged[0]
            named = [readable(judged.category or ""), f"{judged.classes:,}", f"{judged.metrics.queries:,}"]
            first, *others = each._cells(bounds)[1]
            rows += [[*named, *first], *(["", "", "", *row] for row in others)]
        title = "By category; the queries of each search all images"
        few = min(each.judged[0].classes for each in self.categories) < FEWEST_CLASSES
        remarks = [f"A category of fewer than {FEWEST_CLASSES} classes has no honest interval."] if few else []
        return _laid_out(form, title, header, rows, remarks)

    def _content(self) -> dict[str, Any]:
        """Of one: its metrics under the name of the split, and more; of two: a list of such, and the differences."""
        each = [_summary(judged) for judged in self.judged]
        more: dict[str, Any] = {"level": self.level} if self.intervals or self.differences else {}
        if self.categories:
            more["categories"] = {part.judged[0].category: part._content() for part in self.categories}
        if self.parts:
            more["parts"] = {part.judged[0].split: part._content() for part in self.parts}
        if len(each) == 1:
            intervals = {name: [_number(each.low), _number(each.high)] for name, each in self.intervals.items()}
            return each[0] | ({"intervals": intervals} if intervals else {}) | more
        models = [{"model": judged.name} | summary for judged, summary in zip(self.judged, each, strict=True)]
        differences = {
            name: {key: _number(value) for key, value in vars(each).items()} for name, each in self.differences.items()
        }
        return {"models": models} | ({"differences": differences} if differences else {}) | more

    def _records(self) -> list[Record]:
        first, split = self.judged[0].metrics, self.judged[0].split
        if len(self.judged) == 1:
            none = Interval(math.nan, math.nan, math.nan)
            found = [(name, value, self.intervals.get(name, none)) for name, value in first.items()]
            return [
                {"metric": name, "split": split, "value": value, "chance": first.chance.get(name, math.nan)}
                | {"low": each.low, "high": each.high}
                for name, value, each in found
            ]
        second = self.judged[1].metrics
        none = PairedDifference(math.nan, math.nan, math.nan, math.nan)
        return [
            {"metric": name, "split": split, "first": value, "second": second[name]}
            | vars(self.differences.get(name, none))
            | {"difference": value - second[name]}
            for name, value in first.items()
        ]

    def _cells(self, bounds: bool) -> tuple[list[str], list[list[str]]]:
        """In percent, as papers print; with bounds where asked for."""
        interval = f"{100 * self.level:g}% interval"
        if len(self.judged) == 1:
            header = ["metric", self.judged[0].split, "chance", *([interval] if bounds else [])]
            rows = [
                [row["metric"], _percent(row["value"]), _percent(row["chance"]), _bounds(row)]
                for row in self._records()
            ]
            return header, [row[: len(header)] for row in rows]
        chance = self.judged[0].metrics.chance  # the queries and their matches are the same for both
        header = ["metric", "A", "B", "chance", "A - B", *([interval, "p"] if bounds else [])]
        rows = [
            [
                row["metric"], _percent(row["first"]), _percent(row["second"]),
                _percent(chance.get(row["metric"], math.nan)), f"{100 * row['difference']:+.2f}",
                _bounds(row), "–" if math.isnan(row["p_value"]) else f"{row['p_value']:.4f}",
            ]
            for row in self._records()
        ]  # fmt: skip
        return header, [row[: len(header)] for row in rows]

    def _title(self) -> str:
        judged = self.judged[0]
        title = f"{_count(judged.classes, 'class', 'classes')}, {_count(judged.metrics.queries, 'query', 'queries')}"
        title += f", {_IMAGES.get(judged.split, f'{judged.split} images')}"
        if judged.metrics.average == "classes":
            title += ", averages over classes"
        if len(self.judged) == 1:
            return title
        return f"{title}\nA: {readable(judged.name)}\nB: {readable(self.judged[1].name)}"

    def _remarks(self) -> list[str]:
        judged = self.judged[0]
        left_out = judged.metrics.left_out
        remarks = [few_classes(judged.query_classes)] if few_classes(judged.query_classes) else []
        if judged.trained_on or (judged.trained_on is not None and judged.split == "all"):
            of = "either model" if len(self.judged) > 1 else "the model"
            remarks.append(
                f"By their names, {of} was trained on {judged.trained_on} of these {judged.classes} classes."
            )
        if left_out:
            have = "has" if left_out == 1 else "have"
            remarks.append(f"{_count(left_out, 'query', 'queries')} {have} nothing of the class to find: left out.")
        if self.differences and "nmi" in self.judged[0].metrics:
            remarks.append("Clustering has no value of each query to test; compare its intervals model by model.")
        return remarks


def _laid_out(
    form: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], remarks: Sequence[str]
) -> str:
    if form == "markdown":  # where what follows a table at once is a row of it
        return "\n".join([title, "", markdown_table(header, rows), *([""] if remarks else []), *remarks])
    return "\n".join([title, format_table(header, rows), *remarks])


def class_rows(judged: Judged) -> list[Record]:
    """The metrics of each class with a judged query, worst first."""
    names = judged.rows.class_names or ()
    counts = judged.metrics.labels[judged.metrics.judged].bincount()
    rows = [
        {"label": readable(names[label]), "queries": int(counts[label])} | metrics
        for label, metrics in judged.metrics.per_class().items()
    ]
    return sorted(rows, key=lambda row: row[judged.metric])


def query_rows(judged: Judged) -> list[Record]:
    """The metrics of each judged query, worst first; named by its path, or else by its row from 1."""
    rows, names = judged.rows, judged.rows.class_names or ()
    asked = range(len(judged.metrics.labels)) if rows.is_query is None else rows.is_query.nonzero().squeeze(1).tolist()
    labels = judged.metrics.labels.tolist()
    values = {name: each.tolist() for name, each in judged.metrics.per_query.items()}
    found = [
        {
            "query": readable(rows.paths[asked[place]]) if rows.paths else asked[place] + 1,
            "label": readable(str(names[labels[place]])),
        }
        | {name: each[place] for name, each in values.items()}
        for place in judged.metrics.judged.nonzero().squeeze(1).tolist()
    ]
    return sorted(found, key=lambda row: row[judged.metric])


def write_table(path: Path, rows: Sequence[Record]) -> None:
    """Write records as CSV."""
    write_text(path, csv_text(rows) + "\n")


def print_worst(judged: Judged, count: int) -> None:
    """Print the first of `class_rows` and `query_rows`."""
    for title, key, rows in (
        ("Worst classes", "label", class_rows(judged)),
        ("Hardest queries", "query", query_rows(judged)),
    ):
        print(f"{title} by {judged.metric}")
        shown = [[str(row[key]), _percent(row[judged.metric])] for row in rows[:count]]
        print(format_table([key, judged.metric], shown))


def _summary(judged: Judged) -> dict[str, Any]:
    labels = judged.rows.labels
    known = {} if judged.trained_on is None else {"classes_trained_on": judged.trained_on}
    return {
        judged.split: dict(judged.metrics),
        "chance": judged.metrics.chance,
        "classes": judged.classes,
        **known,
        **({} if judged.category is not None else {"images": 0 if labels is None else len(labels)}),
        "queries": judged.metrics.queries,
        "queries_left_out": judged.metrics.left_out,
    }


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay a table out in Markdown, numbers (all but the first column) to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def csv_text(rows: Sequence[Record]) -> str:
    """Lay records out as CSV; what is None or NaN is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if _is_nan(value) else value for key, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def _number(value: float) -> float | None:
    return None if _is_nan(value) else value  # JSON has no NaN


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.2f}"


def _bounds(row: Record) -> str:
    return "–" if math.isnan(row["low"]) else f"{_percent(row['low'])} … {_percent(row['high'])}"
