"""Copy the kept runs of rule.md from another checkout to this one, or to one of the commit that makes them.

    python docs/experiments/copy_rows.py CHECKOUT/docs/experiments/kept
    python docs/experiments/copy_rows.py --csv CHECKOUT/docs/experiments/kept

A row replaces the one of the same data set, loss or component, condition and seed. Keys that recipes no longer have are
left out. Commit b89349d4, which makes these runs, keeps them as CSV files: they are read here, and --csv writes them.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import _experiments as shared
import _kept
import functions
from drop_keys import GONE, without_keys

from proxemic.errors import UserError
from proxemic.files import write_csv
from proxemic.recipes import find_recipe


def copy_rows(source: Path, target: Path, gone: Mapping[str, object] = GONE) -> int:
    """Copy all rows; return how many are new or different."""
    found = dict(_read_files(source, target)) or {name: _kept.read_all(source, name) for name in ("epochs", "evidence")}
    if not any(found.values()):
        raise UserError(f"{source} holds no runs of rule.md: give the folder docs/experiments/kept of a checkout.")
    return sum(
        _kept.merge(target, table, [without_keys(row, gone, table) for row in rows]) for table, rows in found.items()
    )


def write_files(kept: Path, target: Path) -> int:
    """Write the rows as the CSV files of commit b89349d4; return how many there are."""
    count = 0
    for table, ending in (("epochs", "-epochs"), ("evidence", "")):
        columns = [name for name in _kept.TABLES[table].schema.names if name not in ("dataset", "name", "versions")]
        files = defaultdict[tuple[str, str], list[list[object]]](list)
        for row in _kept.read_all(kept, table):
            if table == "evidence":
                row |= {"diverged": "yes" if row["diverged"] else "", "recipe": _file_of(row, kept)}
            files[row["dataset"], row["name"]].append([row[name] for name in columns])
            count += 1
        for (dataset, name), rows in files.items():
            write_csv(target / dataset / "evidence" / f"{name}{ending}.csv", columns, rows)
    return count


def _file_of(row: _kept.Row, kept: Path) -> str:
    """Return the last parts of the path of a run's recipe."""
    if row["name"] == functions.LOSS:
        own = f"glyphs-small/{functions.LOSS}/{row['condition']}.yaml"
        return own if row["dataset"] == "glyphs-small" else f"recipes/{row['dataset']}/euclidean-softmax.yaml"
    return f"{row['dataset']}/searches/{_searches(kept)[row['dataset'], row['recipe']]}.yaml"


@cache
def _searches(kept: Path) -> Mapping[tuple[str, str], str]:
    return {(row["dataset"], row["recipe"]): row["name"] for row in _kept.read_all(kept, "searches")}


def _read_files(source: Path, target: Path) -> Iterator[tuple[str, list[_kept.Row]]]:
    """Read the CSV files of an older commit, DATASET/evidence/NAME.csv and NAME-epochs.csv."""
    files = sorted(source.glob("*/evidence/*.csv"))
    for table in ("epochs", "evidence") if files else ():  # a run without epochs would not be copied again
        rows = []
        for file in files:
            name = file.stem.removesuffix("-epochs")
            if (file.stem != name) == (table == "epochs"):
                with file.open(encoding="utf-8", newline="") as opened:
                    of_file = {"dataset": file.parents[1].name, "name": name}
                    rows += [_typed(table, of_file | row, target) for row in csv.DictReader(opened)]
        yield table, rows


def _typed(table: str, row: Mapping[str, str], target: Path) -> _kept.Row:
    columns = _kept.TABLES[table].schema
    parse = {_kept.TEXT: str, _kept.COUNT: int, _kept.NUMBER: float}
    typed: dict[str, Any] = {
        name: parse[columns.field(name).type](text)
        for name, text in row.items()
        if name not in ("diverged", "recipe") and (text or name in _kept.TABLES[table].key)
    }
    if table == "evidence":
        typed |= {"diverged": row["diverged"] == "yes", "recipe": _recipe(row["recipe"], target)}
    return typed


def _recipe(file: str, target: Path) -> str:
    """Return the text of DATASET/searches/NAME.yaml, or of a recipe of the package, recipes/DATASET/NAME.yaml."""
    first, middle, last = Path(file).with_suffix("").parts
    if middle == "searches":
        return shared.Kept(target, first).recipe_text(last)
    return shared.full_text(find_recipe(f"{first}/{middle}/{last}".removeprefix("recipes/")))


def main() -> None:
    """Copy, and print how many rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="KEPT", help="the folder docs/experiments/kept of the checkout")
    parser.add_argument("--csv", action="store_true", help="write the rows of this checkout to that one")
    shared.add_kept(parser)
    arguments = parser.parse_args()
    try:
        if arguments.csv:
            print(f"{write_files(arguments.kept, arguments.source):,} rows are in {arguments.source}.")
            return
        print(f"{copy_rows(arguments.source, arguments.kept):,} rows are new or different in {arguments.kept}.")
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
