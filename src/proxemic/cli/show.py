"""Print results on the terminal."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from proxemic.runs.precision import computed_in
from proxemic.runs.verdict import BEFORE, recorded_verdict
from proxemic.studies.statistics import few_classes
from proxemic.tables import MISSING, Table, percent


def emphasized(line: str) -> str:
    """Return a warning in bold yellow if the output is a terminal, and any other line unchanged."""
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"\033[1;33m{line}\033[0m" if colours and line.startswith("WARNING") else line


def print_metrics(result: Mapping[str, Any]) -> None:
    """Print a summary, warnings, and the metrics of ``metrics.json``, next to those before training and by chance.

    Without test classes, print the metrics on the validation classes.
    """
    if "phases" in result:
        ends = {"plateau": "to a plateau", "epochs": "the most allowed"}
        phases = [f"{phase['epochs']} epochs, {ends[phase['reason']]}" for phase in result["phases"]]
        print(f"Trained for {'; then, in the second phase, '.join(phases)}.")
    if result.get("split") == "nothing held out":
        print(f"Trained on all {result['train_classes']:,} classes, {result['train_images']:,} images.")
    if "test" not in result:
        if "validation" in result:
            columns = ("validation", "validation_start", "validation_untrained")
            shown = {name.removeprefix("validation_"): result[name] for name in columns if name in result}
            print_table(f"Validation, which selected {_chosen(result)}{computed_in(result.get('precision'))}", shown)
        return
    trained_on, classes = result.get("test_classes_trained_on", 0), result["test_classes"]
    closed = " (closed set)" if result.get("split") == "closed-set" else ""
    all_of_them = "" if trained_on == classes else f"{trained_on} of them "
    unseen = f"classes, {all_of_them}TRAINED ON{closed}" if trained_on else "unseen classes"
    print(f"\n{recorded_verdict(result)}")
    if few := few_classes(result["test_classes"]):
        print(emphasized(f"WARNING: {few}"))
    title = f"Test: {classes} {unseen}, {result['test_queries']:,} queries, {_chosen(result)}"
    title += computed_in(result.get("precision"))
    if result["selected_on"] == "test":
        title += " SELECTED ON THE TEST CLASSES"
    print_table(title, {name: result[name] for name in ("test", "start", "untrained", "chance") if name in result})
    if result["test_queries_left_out"]:
        print(f"{result['test_queries_left_out']} queries have no other image of their class and are left out.")


def _chosen(result: Mapping[str, Any]) -> str:
    """Name the network that was kept; results of earlier versions state only the epoch."""
    kept, epoch = result.get("kept", ""), f"epoch {result['epoch']}"
    if kept in BEFORE:
        return f"the network {BEFORE[kept]}"
    return f"{epoch}, averaged weights" if kept == "average" else epoch


def print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics in percent, one row per metric, and what training gained; a missing value is a dash."""
    first = next(iter(columns.values()))
    before = columns.get("start", columns.get("untrained"))
    gains = [MISSING if before is None else f"{100 * (first[metric] - before[metric]):+.2f}" for metric in first]
    rows = [
        [metric, *(percent(column.get(metric)) for column in columns.values()), *([gain] if before else [])]
        for metric, gain in zip(first, gains, strict=True)
    ]
    names = [BEFORE.get(name, name) for name in columns]
    print(Table(["metric", *names, *(["gain"] if before else [])], rows, title).text())
