"""The actions of ``proxemic recipes``."""

from typing import TYPE_CHECKING

from proxemic.extras import optional_dependency

if TYPE_CHECKING:
    from proxemic.recipes.flags import Flags


def list() -> None:
    """List the names of all recipes, with what they are for."""
    from proxemic.recipes import list_recipes, recipe_summary

    names = list_recipes()
    for name in names:
        print(f"{name:{max(map(len, names))}}  {recipe_summary(name)}")


def show(name: str, /, *, overrides: "Flags") -> None:
    """Show a recipe in full, defaults included; also with flags applied.

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
    """Explain a key of recipes: what it is for, what it may be and what it is by default.

    Args:
        key: A key, such as optim.lr, or the last part of one, such as lr.
    """
    from proxemic.recipes import explain

    print(explain(key))
