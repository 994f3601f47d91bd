"""The actions of ``proxemic recipes``."""

from collections import Counter
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from proxemic.errors import UserError
from proxemic.extras import optional_dependency

if TYPE_CHECKING:
    from proxemic.recipes.flags import Flags


_STARTERS = (
    *("glyphs", "glyphs-small/proxy-anchor", "own-pretrained", "own-resnet50", "own", "own-vectors"),
    *("cub/proxy-anchor", "cars/proxy-anchor", "sop/proxy-anchor", "faces/small"),
)
"""The recipes to begin with: drawn characters, your own data, and benchmarks."""


def list(patterns: Sequence[str] = (), /) -> None:
    """List recipes with their purpose: ten to begin with and a count per data set, or those that match a pattern.

    Args:
        patterns (PATTERN): A data set, such as cars, or a pattern, such as 'glyphs-small/*-anchor' or '**' for all.
    """
    from proxemic.recipes import is_match, list_recipes, recipe_summary

    known = list_recipes()
    names = [
        name for name in known if any(is_match(name, pattern) or name.startswith(f"{pattern}/") for pattern in patterns)
    ] or _STARTERS
    if patterns and names == _STARTERS:
        raise UserError(f"No recipe is called {' or '.join(patterns)}: see the data sets with proxemic recipes list.")
    for name in names:
        print(f"{name:{max(map(len, names))}}  {recipe_summary(name)}")
    if not patterns:
        counts = Counter(name.partition("/")[0] for name in known if "/" in name)
        print(f"\n{len(known):,} recipes in all; see those of a data set with proxemic recipes list NAME:")
        print(fill(", ".join(f"{name} {count}" for name, count in counts.items()), 100))


def show(name: str, /, *, overrides: "Flags") -> None:
    """Show a recipe in full, with its defaults and the given flags.

    Args:
        name (NAME|FILE): The name of a recipe, or a YAML file.
    """
    from proxemic.recipes import SCHEMA, find_recipe

    with optional_dependency("train"):
        import yaml

    from proxemic.models import check_backbone
    from proxemic.recipes.build import names_nothing
    from proxemic.recipes.reader import read_recipe

    text = read_recipe(find_recipe(name), overrides).yaml
    backbone = yaml.safe_load(text)["model"]["backbone"]
    if names_nothing(backbone, str):  # no class of the user's own
        check_backbone(backbone)
    print(f"# yaml-language-server: $schema={SCHEMA.as_uri()}\n{text}", end="")  # from which editors complete keys


def explain(key: str, /) -> None:
    """Explain a key of recipes: its purpose, its allowed values and its default.

    Args:
        key: A key, such as optim.lr, or the last part of one, such as lr.
    """
    from proxemic.recipes import explain

    print(explain(key))
