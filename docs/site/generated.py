"""Generate the pages of all commands and all keys of recipes from the package."""

import argparse
from collections.abc import Iterator

from proxemic.cli import build_parser
from proxemic.recipes import explaining


def commands_page() -> str:
    """Return a page with the help of every command."""
    lines = ["# Commands", "", "Every command and flag, as `proxemic COMMAND --help` shows them.", ""]
    for name, parser in _commands(build_parser(whole=True)):
        formatter = argparse.HelpFormatter(parser.prog, width=78)
        for group in parser._action_groups:
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        flags = formatter.format_help().strip()
        lines += [f"## {name}", "", (parser.description or "").partition("\n\n")[0], ""]
        lines += ["```text", flags, "```", ""] if flags else []
    return "\n".join(lines)


def recipe_keys_page() -> str:
    """Return a page with the explanation of every key of recipes, and a heading for each section."""
    entries: dict[str, dict[str, list[str]]] = {}
    for key, owner, schema in explaining._below(explaining._schema(), ""):
        if "." in key and not key.startswith("second_phase."):  # the keys of the other sections again
            paragraph = " ".join(explaining._text(schema).split())
            entries.setdefault(key, {}).setdefault(paragraph, []).append(owner)
    lines = [
        "---\nhide: [toc]\n---",
        "",
        "# Recipe keys",
        "",
        "Every key of recipes, as `proxemic recipes explain` shows it. Each is also a flag: `--training.epochs 5`.",
        "",
    ]
    section = ""
    for key in entries:  # in the order of the schema, as some refer to the one before
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            lines += [f"## {section}", ""]
        lines += [f"### `--{key}`", ""]
        for paragraph, owners in entries[key].items():
            names = ", ".join(f"`{name}`" for name in owners if name)
            lines += [f"Of {names}:" if names else "", "", paragraph, ""]
    return "\n".join(lines)


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                below = [*_commands(child)]
                yield from below or [(child.prog, child)]
