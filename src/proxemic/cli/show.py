"""Tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from proxemic.extras import extra

with extra("train"):
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_metrics", "print_table"]


def print_metrics(result: Mapping[str, Any]) -> None:
    """Print the content of ``metrics.json``: test metrics, beside the untrained network's where they were taken."""
    columns = {"test": result["test"]}
    if "untrained" in result:
        columns["untrained"] = result["untrained"]
    title = (
        f"Test: {result['test_classes']} unseen classes, {result['test_queries']:,} queries, epoch {result['epoch']}"
    )
    if result["selected_on"] == "test":
        title += " CHOSEN ON THE TEST CLASSES"
    print_table(title, columns)
    if result["test_queries_left_out"]:
        print(f"{result['test_queries_left_out']} queries have no other image of their class and are left out.")


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics in percent, a row a metric."""
    print(title)
    table = Table("metric")
    for name in columns:
        table.add_column(name, justify="right")
    for metric in next(iter(columns.values())):
        table.add_row(metric, *(f"{100 * column[metric]:.2f}" for column in columns.values()))
    Console().print(table)
