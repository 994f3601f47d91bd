"""Recipes, which are YAML files that describe a training run; those of this package have names, as ``cub/mpa-ap``.

`load` reads a recipe into a `proxemic.training.Recipe`, `to_yaml` writes one, and `explain` says what a key means. A
file is checked in full. Nothing that it names is imported or called unless the type of the key asks for it.
"""

import difflib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.errors import UserError
from proxemic.lazy import lazy_names

if TYPE_CHECKING:
    from proxemic.recipes.explaining import explain
    from proxemic.recipes.reader import load, read_recipe, to_yaml

__all__ = [
    "explain",
    "find_recipe",
    "list_recipes",
    "load",
    "read_recipe",
    "recipe_summary",
    "resolve_extended",
    "to_yaml",
]

__getattr__, __dir__ = lazy_names(__name__)

FOLDER = Path(__file__).parent
SCHEMA = FOLDER / "recipe.schema.json"


def list_recipes() -> list[str]:
    """List the names of all recipes in the package, sorted.

    Files and folders with a leading underscore are left out: other recipes extend them.
    """
    return list(_names())


@functools.cache
def _names() -> tuple[str, ...]:
    names = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")]
    return tuple(sorted(name for name in names if "/_" not in f"/{name}"))


def is_match(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern as in a shell: ``*`` stops at a slash, ``**`` does not.

    >>> [is_match("cub/reality-check/hist", pattern) for pattern in ("cub/*", "cub/**", "cub/*/h?st")]
    [False, True, True]
    """
    signs = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = (signs.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*|\?)", pattern))
    return re.fullmatch("".join(parts), name) is not None


def recipe_summary(name: str) -> str:
    """Return the first line of a recipe, which states its purpose."""
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()


def resolve_extended(name: str, path: Path) -> Path:
    """Find the file that the recipe in ``path`` extends, next to it or else in the package (``cub/_base``).

    Raises:
        UserError: If there is no such file.
    """
    files = [path.parent / name, FOLDER / f"{name}.yaml"]
    extended = next((file for file in files if file.is_file()), None)
    if extended is None:
        raise UserError(
            f"{path} extends {name}, but there is no such recipe: give a file next to it, or a name that proxemic "
            "recipes list prints."
        )
    return extended


def find_recipe(name: str) -> Path:
    """Find a recipe of the package by name, or any YAML file by path.

    Raises:
        UserError: If there is no such file; the most similar name is suggested.
    """
    if name in list_recipes():
        return FOLDER / f"{name}.yaml"
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(
            f"The recipe file {name} does not exist: give a path to a YAML file, or one of the names that "
            "proxemic recipes list prints."
        )
    near = difflib.get_close_matches(name, list_recipes(), n=1, cutoff=0.6)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(f"There is no recipe {name!r}{meant}: give a YAML file or a name of proxemic recipes list.")
