"""``proxemic clean``."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.addresses import without_password
from proxemic.cli.pictures import add_reading, check_reading

if TYPE_CHECKING:
    from proxemic.retrieval.cleaning import Duplicate

_SHOWN = 10


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "clean",
        help="find wrong labels, duplicates and outliers among pictures",
        description="Find labels that are probably wrong, exact and near duplicates, also across splits, and outliers, "
        "and write them as tables and as a page with the pictures, worst first. Nothing is removed or changed. The "
        "model may have been trained on the same labels.",
        epilog="Splits are those of a table's column split, or of folders train, validation and test. Pictures without "
        "a label are looked at for duplicates and outliers. Copies that are recompressed, resized, brightened or "
        "mirrored are found, cropped and rotated ones are not.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="folders of pictures, .csv or .parquet tables with the column path and perhaps label and split, pictures, "
        "patterns, .txt files with a path on each line; or one file of vectors (.safetensors, .npy, .parquet)",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="a run, a model.safetensors, or an .onnx file; not needed for embeddings"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write labels.csv, duplicates.csv, outliers.csv, unreadable.csv and index.html into it",
    )
    add_reading(parser)
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Clean, and print the worst."""
    check_reading(arguments)
    what = " ".join(map(without_password, arguments.source))
    print(f"Looking at {what}", file=sys.stderr, flush=True)  # before seconds of imports
    from proxemic.retrieval.cleaning import clean
    from proxemic.retrieval.cleaning.cleaning import NOT_FOUND
    from proxemic.tables import Table

    found = clean(
        arguments.source,
        arguments.model,
        out=arguments.out,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        report=partial(print, file=sys.stderr),
    )
    print(found.summary())
    suspects = [[each.path, each.label, each.suggested, f"{each.score:.3f}"] for each in found.labels]
    duplicates = [[each.path, each.of, each.kind, _warning(each)] for each in found.duplicates]
    outliers = [[each.path, each.label, f"{each.score:.1f}"] for each in found.outliers]
    for title, columns, rows, align in (
        ("Suspected labels", ["path", "label", "suggested", "score"], suspects, "lllr"),
        ("Duplicates", ["path", "of", "kind", ""], duplicates, "llll"),
        ("Outliers", ["path", "label", "score"], outliers, "llr"),
    ):
        if rows:
            notes = [f"{len(rows) - _SHOWN:,} more"] if len(rows) > _SHOWN else []
            notes += [NOT_FOUND] if title == "Duplicates" else []
            print()
            print(Table(columns, rows[:_SHOWN], title, notes, align).text())


def _warning(duplicate: "Duplicate") -> str:
    across = f"{duplicate.split} repeats {duplicate.split_of}" if duplicate.across_splits else ""
    differ = f"{duplicate.label} and {duplicate.label_of}" if duplicate.labels_differ else ""
    return "; ".join(filter(None, [across, differ]))
