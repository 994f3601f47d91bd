"""``proxemic recipes``."""

import argparse

from proxemic.extras import optional_dependency


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser("recipes", help="list the recipes, show every value of one, or explain a key")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the names of all recipes, with what they are for")
    listing.set_defaults(run=run, takes_flags=False)
    show = actions.add_parser("show", help="a recipe in full, defaults included; also with flags applied")
    show.add_argument("name", metavar="NAME|FILE")
    show.set_defaults(run=run, takes_flags=True)
    explain = actions.add_parser("explain", help="what a key is for, what it may be and what it is by default")
    explain.add_argument("key", metavar="KEY", help="a key, as optim.lr, or the last part of one, as lr")
    explain.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """List, show or explain."""
    from proxemic.recipes import SCHEMA, find_recipe, list_recipes, recipe_summary

    if arguments.action == "explain":
        from proxemic.recipes import explain

        print(explain(arguments.key))
        return

    if arguments.action == "list":
        names = list_recipes()
        for name in names:
            print(f"{name:{max(map(len, names))}}  {recipe_summary(name)}")
        return
    with optional_dependency("train"):
        import yaml

    from proxemic.models import check_backbone
    from proxemic.recipes.build import names_nothing
    from proxemic.recipes.reader import read_recipe

    text = read_recipe(find_recipe(arguments.name), flags).yaml
    backbone = yaml.safe_load(text)["model"]["backbone"]
    if names_nothing(backbone, str):  # no class of the user's own
        check_backbone(backbone)
    print(f"# yaml-language-server: $schema={SCHEMA.as_uri()}\n{text}", end="")  # from which editors complete keys
