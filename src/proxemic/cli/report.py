"""``proxemic report``."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.training import TrainingResult


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="write a page about a run: metrics with intervals, pictures, curves, recipe",
        description="Write one HTML file about a run, which opens without a network: its metrics with intervals beside "
        "those of the network before training, distances, curves, data, recipe and environment. Further runs are "
        "compared with the first on its pictures.",
        allow_abbrev=False,
    )
    parser.add_argument("targets", nargs="+", type=Path, metavar="RUN", help="a finished run, and others beside it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (report.html in the run)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Write the page, and print where it is."""
    first, *others = arguments.targets
    print(f"Reporting on {first}", file=sys.stderr, flush=True)  # before what takes seconds to import
    from proxemic.report import write_report

    out = arguments.out or first / "report.html"
    print(f"Wrote {write_report(first, *others, out=out, report=partial(print, file=sys.stderr))}")


def report_at_the_end(result: "TrainingResult") -> None:
    """Write the report of a run that has just been trained, and print where it is; a failure is only said."""
    out, metrics = result.path / "report.html", result.path / "metrics.json"
    if out.exists() and out.stat().st_mtime_ns >= metrics.stat().st_mtime_ns:  # a finished run that was resumed
        return

    def write() -> Path:
        from proxemic.report import write_report

        return write_report(result.path, out=out, embedded=result.embedded, report=print)

    print_report(write, f"proxemic report {result.path}")


def print_report(write: Callable[[], Path], command: str) -> None:
    """Write a report and print where it is, or why there is none: what it is about is finished all the same."""
    try:
        print(f"Report: {write()}")
    except Exception as error:
        sentence = " ".join(str(error).split()) or type(error).__name__
        print(f"The report was not written: {sentence} Write it with {command}")
