"""Delete keys that recipes no longer have from the kept recipes.

    python docs/experiments/drop_keys.py

Whoever removes or renames a key of recipes adds it to `GONE` and runs this script in the same change. A kept recipe in
which a key does not have its default is refused, because it would train something else without the key.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _experiments as shared
import yaml

from proxemic.errors import UserError
from proxemic.files import write_text

GONE: Mapping[str, object] = {
    "training.start_phase": 1,
    "training.interpolate": [],
    "training.class_balance": None,
    "vectors.mix": None,
    "features": {"cache": False, "copies": None, "folder": None},
}
"""The keys that were removed, by dotted names, with their defaults."""


def drop_keys(folder: Path, gone: Mapping[str, object] = GONE) -> int:
    """Delete the keys from all recipes in a folder, or from none if one is refused; return how many recipes changed."""
    texts = {file: file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.yaml"))}
    changed = {file: new for file, text in texts.items() if (new := _without(file, text, gone)) != text}
    for file, text in changed.items():
        write_text(file, text)
    return len(changed)


def _without(file: Path, text: str, gone: Mapping[str, object]) -> str:
    content = yaml.safe_load(text)
    for key, default in gone.items():
        *path, name = key.split(".")
        section: Any = content
        for part in path:
            section = (section or {}).get(part)
        if section and name in section and (value := section.pop(name)) != default:
            raise UserError(f"{file} has {key}: {value}, and not the default, {default}: search it again without it.")
    return shared.recipe_text(text, content)


def main() -> None:
    """Delete the keys, and say from how many recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=shared.HERE / "kept", metavar="DIR", help="where recipes are kept")
    try:
        print(f"{drop_keys(parser.parse_args().kept):,} recipes have changed.")
    except UserError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
