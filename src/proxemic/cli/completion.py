"""Write shell completions of commands, flags, recipes and files."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from proxemic.extras import optional_dependency

if TYPE_CHECKING:
    from proxemic.cli import _Parser

_RECIPES = ("RECIPE", "NAME|FILE")
_FOLDERS = ("DIR",)
_FILES = (
    *("DIR|FILE", "DIR|TABLE|FILE", "FILE", "FILE.csv|DIR", "GALLERY", "MODEL", "PATH", "PATH|NAME", "QUERY"),
    *("RUN", "RUN|FILE", "RUN|GALLERY|MODEL", "SOURCE", "STEM", "TABLE"),
)
"""Metavars of arguments that take recipes, folders and files; a test finds arguments with other metavars."""

# shtab's own functions split names at blanks; bash appends no blank to completions of functions with such a name.
_BASH = """
_proxemic_files() { compgen -f -- "$1"; }
_proxemic_dirs() { compgen -d -- "$1"; }
_proxemic_recipe_files() { compgen -W "$_proxemic_recipes" -- "$1"; compgen -f -- "$1"; }
_proxemic_recipes='NAMES'
"""
_ZSH = """
_proxemic_recipes() { _alternative 'recipes:recipe:(NAMES)' 'files:file:_files' }
"""


def completion(parser: "_Parser", shell: str) -> str:
    """Return a completion script for bash, zsh or tcsh, which also completes the keys of recipes.

    Raises:
        ModuleNotFoundError: If shtab is not installed.
    """
    with optional_dependency("train"):
        import shtab
    from proxemic.recipes import list_recipes
    from proxemic.recipes.explaining import recipe_keys

    keys = recipe_keys()
    for item in _parsers(parser):
        if item.command is not None and "overrides" in item.command.takes:
            for key in keys:
                if f"--{key}" not in item._option_string_actions:
                    item.add_argument(f"--{key}", metavar="VALUE", help=f"proxemic recipes explain {key}")
    names = " ".join(list_recipes())
    recipes = {"bash": "_proxemic_recipe_files", "zsh": "_proxemic_recipes", "tcsh": f"({names})"}
    files = {"bash": "_proxemic_files", "zsh": "_files", "tcsh": "f"}
    folders = {"bash": "_proxemic_dirs", "zsh": "_files -/", "tcsh": "d"}
    by_name = {
        **dict.fromkeys(_RECIPES, recipes),
        **dict.fromkeys(_FILES, files),
        **dict.fromkeys(_FOLDERS, folders),
    }
    for action in arguments_of(parser):
        if isinstance(action.metavar, str) and action.choices is None and action.metavar in by_name:
            vars(action)["complete"] = by_name[action.metavar]
    preamble = {"bash": _BASH.replace("NAMES", names), "zsh": _ZSH.replace("NAMES", names)}
    return shtab.complete(parser, shell, preamble=preamble.get(shell, ""))


def arguments_of(parser: "_Parser") -> Iterator[argparse.Action]:
    """List all arguments of a parser and of its subparsers."""
    for item in _parsers(parser):
        yield from (action for action in item._actions if not isinstance(action, argparse._SubParsersAction))


def _parsers(parser: "_Parser") -> Iterator["_Parser"]:
    """List a parser and its subparsers."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                yield from _parsers(choice)
