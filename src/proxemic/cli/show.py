"""Tables on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemic.extras import extra

with extra("train"):
    from rich.console import Console
    from rich.table import Table

__all__ = ["format_table", "print_metrics", "print_table", "print_written"]


def print_metrics(result: Mapping[str, Any]) -> None:
    """Print the content of ``metrics.json``: test metrics, beside the untrained network's where they were taken.

    Where there are no test classes, those of the validation.
    """
    if "test" not in result:
        if "validation" in result:
            print_table(f"Validation, which chose epoch {result['epoch']}", {"validation": result["validation"]})
        return
    columns = {"test": result["test"]}
    if "untrained" in result:
        columns["untrained"] = result["untrained"]
    unseen = "classes, TRAINED ON" if "test_classes_trained_on" in result else "unseen classes"
    title = f"Test: {result['test_classes']} {unseen}, {result['test_queries']:,} queries, epoch {result['epoch']}"
    if result["selected_on"] == "test":
        title += " CHOSEN ON THE TEST CLASSES"
    print_table(title, columns)
    if result["test_queries_left_out"]:
        print(f"{result['test_queries_left_out']} queries have no other image of their class and are left out.")


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics in percent, a row a metric."""
    metrics = next(iter(columns.values()))
    rows = [[metric, *(_percent(column.get(metric)) for column in columns.values())] for metric in metrics]
    print(title)
    print(format_table(["metric", *columns], rows))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"  # metrics of one's own have no chance level


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay a table out for the terminal, numbers (all but the first column) to the right."""
    table = Table()
    table.add_column(header[0], overflow="fold")  # names are shown whole
    for name in header[1:]:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # What users call their classes is no markup.
    console = Console(markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def print_written(paths: Sequence[Path]) -> None:
    """Say which files were written, in one line."""
    print(f"Wrote {', '.join(map(str, paths))}")
