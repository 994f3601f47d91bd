"""``proxemic datasets``."""

import argparse
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser("datasets", help="look at images before training on them")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check", help="count images and classes; find unreadable files, lone images and exact duplicates"
    )
    check.add_argument("path", type=Path, metavar="PATH", help="a folder of class folders, or a CSV or Parquet table")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Check a folder or a table."""
    import json

    from proxemic.data import check

    report = check(arguments.path)
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else "\n".join(report.lines()))
