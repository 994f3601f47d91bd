"""Copy rows of evidence from the kept folder of one worktree to that of another.

    python docs/experiments/copy_rows.py WORKTREE/docs/experiments/kept docs/experiments/kept

A row replaces the one of the same data set, name, condition and seed. Keys that recipes no longer have are left out of
the changes that a row names.
"""

import argparse
import json
from collections.abc import Collection
from pathlib import Path

import _experiments as shared
from _evidence import Evidence
from drop_keys import GONE


def copy_rows(source: Path, target: Path, gone: Collection[str] = GONE) -> int:
    """Copy all rows; return how many are new or different."""
    changed = 0
    for file in sorted(source.glob("*/evidence/*.csv")):
        rows = [_without(row, gone) for row in shared.read_rows(file)]
        new = target / file.relative_to(source)
        before = shared.read_rows(new)
        added = [row for row in rows if row not in before]
        if added:
            Evidence.merge(new, rows, ("epoch",) if file.stem.endswith("-epochs") else ())
        changed += len(added)
    return changed


def _without(row: dict[str, str], gone: Collection[str]) -> dict[str, str]:
    if "values" not in row:
        return row
    values = {key: value for key, value in json.loads(row["values"]).items() if not _is_in(key, gone)}
    return row | {"values": json.dumps(values)}


def _is_in(key: str, gone: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in gone)


def main() -> None:
    """Copy, and say how many rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="KEPT")
    parser.add_argument("target", type=Path, metavar="KEPT")
    arguments = parser.parse_args()
    for folder in (arguments.source, arguments.target):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder: give the kept folders of two worktrees.")
    print(f"{copy_rows(arguments.source, arguments.target):,} rows are new or different in {arguments.target}.")


if __name__ == "__main__":
    main()
