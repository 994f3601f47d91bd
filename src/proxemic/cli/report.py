"""``proxemic report``."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.addresses import GALLERY_FILE, without_password
from proxemic.cli.pictures import data_root
from proxemic.errors import UserError

if TYPE_CHECKING:
    from proxemic.training import TrainingResult


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="write a page about a run or a gallery: metrics with intervals, pictures, a map, curves, recipe",
        description="Write one HTML file about a run, which opens without a network: its metrics with intervals beside "
        "those of the network before training, queries with their neighbours, confused classes, distances, a map, why "
        "pictures are near, curves, data, recipe and environment. Further runs are compared with the first on its "
        "pictures. Or about a gallery: a summary, duplicates, and as much of these as it has labels and a model for.",
        epilog="--data.root SOURCE shows other labelled pictures than those that the run held out: a folder or a "
        "table, as for evaluate.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="RUN|GALLERY",
        help="a finished run, and others beside it; or a gallery: a directory, postgresql://…, milvus://…",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (report.html in the run, or here where it is a gallery)"
    )
    parser.add_argument(
        "--model", type=Path, metavar="RUN|FILE", help="the gallery's model, where it is not where it was"
    )
    parser.add_argument(
        "--map",
        choices=("pca", "tsne", "umap"),
        default="pca",
        help="how the map of pictures is made (default: pca); umap needs the extra umap",
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Write the page, and print where it is."""
    first, *others = arguments.targets
    shown = without_password(first)
    print(f"Reporting on {shown}", file=sys.stderr, flush=True)  # before what takes seconds to import
    from proxemic.report import write_gallery_report, write_report

    root = data_root(flags)
    report = partial(print, file=sys.stderr)
    if ":" in first or (Path(first) / GALLERY_FILE).is_file():
        if others:
            raise UserError(f"{shown} is a gallery, of which a report is about one: leave {others[0]} out.")
        if root is not None:
            raise UserError(f"--data.root is for a run, but {shown} is a gallery: leave it out.")
        page = write_gallery_report(
            first,
            out=arguments.out or Path("report.html"),
            model=arguments.model,
            projection=arguments.map,
            report=report,
        )
        print(f"Wrote {page}")
        return
    if arguments.model is not None:
        raise UserError(f"--model is for a gallery, but {first} is none: leave it out.")
    if not (Path(first) / "recipe.yaml").is_file():
        raise UserError(
            f"{first} is neither a run (there is no recipe.yaml in it) nor a gallery (no {GALLERY_FILE}): give the "
            "directory that proxemic train or proxemic gallery create made, or the address of a gallery."
        )
    out = arguments.out or Path(first, "report.html")
    page = write_report(first, *others, out=out, root=root, projection=arguments.map, report=report)
    print(f"Wrote {page}")


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
