"""Delete keys that recipes no longer have from the kept recipes.

    python docs/experiments/drop_keys.py

Whoever removes or renames a key of recipes adds it to `GONE` and runs this script in the same change. A kept recipe in
which a key does not have its default is refused, because it would train something else without the key.
"""

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _experiments as shared
import _kept
import yaml

from proxemic.errors import UserError

GONE: Mapping[str, object] = {
    "training.start_phase": 1,
    "training.interpolate": [],
    "training.class_balance": None,
    "vectors.mix": None,
    "features": {"cache": False, "copies": None, "folder": None},
}
"""The keys that were removed, by dotted names, with their defaults."""


def drop_keys(kept: Path, gone: Mapping[str, object] = GONE) -> int:
    """Delete the keys from all recipes, or from none if one is refused; return how many searches and runs changed."""
    tables = {
        table: [without_keys(row, gone, table) for row in _kept.read_all(kept, table)]
        for table, layout in _kept.TABLES.items()
        if "recipe" in layout.values
    }
    return sum(_kept.merge(kept, table, rows) for table, rows in tables.items())


def without_keys(row: _kept.Row, gone: Mapping[str, object], table: str) -> _kept.Row:
    """Return a row without the keys in its recipe and in the values that change this."""
    changed: dict[str, str] = {}
    place = f"{table}.parquet, {row['dataset']} {row['name']}"
    if row.get("recipe"):
        changed["recipe"] = _without(row["recipe"], json.dumps(gone), place)
    if row.get("values"):
        values = json.loads(row["values"])
        changed["values"] = json.dumps({key: value for key, value in values.items() if not _is_in(key, gone)})
    return row | changed


def _is_in(key: str, gone: Mapping[str, object]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in gone)


@functools.cache  # many runs have the same recipe
def _without(text: str, gone: str, place: str) -> str:
    content, changed = yaml.safe_load(text), False
    for key, default in json.loads(gone).items():
        *path, name = key.split(".")
        section: Any = content
        for part in path:
            section = (section or {}).get(part)
        if section and name in section:
            if (value := section.pop(name)) != default:
                raise UserError(f"{place} has {key}: {value} instead of the default, {default}: search again without.")
            changed = True
    if not changed:
        return text
    note = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return note + yaml.safe_dump(content, sort_keys=False)


def main() -> None:
    """Delete the keys, and say from how many rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared.add_kept(parser)
    try:
        print(f"{drop_keys(parser.parse_args().kept):,} searches and runs have changed.")
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
