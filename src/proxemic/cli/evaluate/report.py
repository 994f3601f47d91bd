"""What was found, as a table, JSON, CSV or Markdown."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.cli.evaluate.targets import Judged
from proxemic.cli.show import format_table
from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.metrics import Interval, PairedDifference, paired_differences

__all__ = [
    "FORMATS",
    "Report",
    "check_names",
    "class_rows",
    "csv_text",
    "markdown_table",
    "print_worst",
    "query_rows",
    "write_table",
]

FORMATS = {".json": "json", ".csv": "csv", ".md": "markdown"}
Record = Mapping[str, Any]


def check_names(out: Path | None, *tables: Path | None) -> None:
    """Raise `UserError` where a file is not named by a format that it can have."""
    if out is not None and out.suffix.lower() not in FORMATS:
        raise UserError(f"--out is {out}, but must end in .json, .csv or .md, which says its format.")
    for table in tables:
        if table is not None and table.suffix.lower() != ".csv":
            raise UserError(f"{table} is written as CSV: let its name end in .csv.")


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
            self.intervals = first.intervals(level=level, resamples=resamples)
        elif resamples:
            self.differences = paired_differences(
                first.per_query,
                judged[1].metrics.per_query,
                first.labels,
                average=first.average,
                level=level,
                resamples=resamples,
            )

    def write(self, path: Path) -> None:
        """Write to a file in the format of its name."""
        write_text(path, self.text(FORMATS[path.suffix.lower()]) + "\n")

    def text(self, form: str) -> str:
        """The whole of it: as json, csv, markdown or table."""
        if form == "json":
            return json.dumps(self._content(), indent=2)
        if form == "csv":
            return csv_text(self._records())
        header, rows = self._cells()
        if form == "markdown":
            return "\n".join([self._title(), "", markdown_table(header, rows), *self._remarks()])
        return "\n".join([self._title(), format_table(header, rows), *self._remarks()])

    def _content(self) -> dict[str, Any]:
        """Of one: its metrics under the name of the split, and more; of two: a list of such, and the differences."""
        each = [_summary(judged) for judged in self.judged]
        bounds: dict[str, Any] = {"level": self.level} if self.intervals or self.differences else {}
        if len(each) == 1:
            intervals = {name: [_number(each.low), _number(each.high)] for name, each in self.intervals.items()}
            return each[0] | ({"intervals": intervals} | bounds if intervals else {})
        models = [{"model": judged.name} | summary for judged, summary in zip(self.judged, each, strict=True)]
        differences = {
            name: {key: _number(value) for key, value in vars(each).items()} for name, each in self.differences.items()
        }
        return {"models": models} | ({"differences": differences} | bounds if differences else {})

    def _records(self) -> list[Record]:
        first = self.judged[0].metrics
        if len(self.judged) == 1:
            none = Interval(math.nan, math.nan, math.nan)
            found = [(name, value, self.intervals.get(name, none)) for name, value in first.items()]
            return [{"metric": name, "value": value, "low": each.low, "high": each.high} for name, value, each in found]
        second = self.judged[1].metrics
        none = PairedDifference(math.nan, math.nan, math.nan, math.nan)
        return [
            {"metric": name, "first": value, "second": second[name]}
            | vars(self.differences.get(name, none))
            | {"difference": value - second[name]}
            for name, value in first.items()
        ]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """In percent, as papers print."""
        interval = f"{100 * self.level:g}% interval"
        if len(self.judged) == 1:
            header = ["metric", self.judged[0].split, *([interval] if self.intervals else [])]
            rows = [[row["metric"], _percent(row["value"]), _bounds(row)] for row in self._records()]
            return header, [row[: len(header)] for row in rows]
        header = ["metric", "A", "B", "A - B", *([interval, "p"] if self.differences else [])]
        rows = [
            [
                row["metric"], _percent(row["first"]), _percent(row["second"]), f"{100 * row['difference']:+.2f}",
                _bounds(row), "–" if math.isnan(row["p_value"]) else f"{row['p_value']:.4f}",
            ]
            for row in self._records()
        ]  # fmt: skip
        return header, [row[: len(header)] for row in rows]

    def _title(self) -> str:
        judged = self.judged[0]
        classes = len(set(judged.rows.labels.tolist())) if judged.rows.labels is not None else 0
        title = f"{_count(classes, 'class', 'classes')}, {_count(judged.metrics.queries, 'query', 'queries')}"
        title += f", {judged.split} images"
        if judged.metrics.average == "classes":
            title += ", averages over classes"
        if len(self.judged) == 1:
            return title
        return f"{title}\nA: {judged.name}\nB: {self.judged[1].name}"

    def _remarks(self) -> list[str]:
        left_out = self.judged[0].metrics.left_out
        remarks = []
        if left_out:
            have = "has" if left_out == 1 else "have"
            remarks.append(f"{_count(left_out, 'query', 'queries')} {have} nothing of the class to find: left out.")
        if self.differences and "nmi" in self.judged[0].metrics:
            remarks.append("Clustering has no value of each query to test; compare its intervals model by model.")
        return remarks


def class_rows(judged: Judged) -> list[Record]:
    """The metrics of each class with a judged query, worst first."""
    names = judged.rows.class_names or ()
    counts = judged.metrics.labels[judged.metrics.judged].bincount()
    rows = [
        {"label": names[label], "queries": int(counts[label])} | metrics
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
        {"query": rows.paths[asked[place]] if rows.paths else asked[place] + 1, "label": names[labels[place]]}
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
    return {
        judged.split: dict(judged.metrics),
        "classes": 0 if labels is None else len(labels.unique()),
        "images": 0 if labels is None else len(labels),
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
    return f"{100 * value:.2f}"


def _bounds(row: Record) -> str:
    return "–" if math.isnan(row["low"]) else f"{_percent(row['low'])} … {_percent(row['high'])}"
