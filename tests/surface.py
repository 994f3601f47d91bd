"""Describe what users can reach: public names, commands with their flags, recipes with their values, files of a run.

    python tests/surface.py

writes surface.json anew, with which `test_surface` compares. Name each difference in the changelog.
"""

import argparse
import importlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import proxemic
from images import write_folder, write_recipe
from proxemic.cli import build_parser, main
from proxemic.recipes import find_recipe, list_recipes, read_recipe

SNAPSHOT = Path(__file__).with_name("surface.json")
SOURCE = Path(proxemic.__file__).parent


def public_names() -> dict[str, list[str]]:
    """Return the names that each package exports."""
    packages = sorted(path.parent.relative_to(SOURCE.parent) for path in SOURCE.rglob("__init__.py"))
    modules = [importlib.import_module(".".join(package.parts)) for package in packages]
    return {module.__name__: sorted(module.__all__) for module in modules if getattr(module, "__all__", None)}


def commands() -> dict[str, dict[str, Any]]:
    """Return the arguments and flags of each command, with their choices and defaults."""
    return dict(_commands(build_parser(whole=True), "proxemic"))


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from _commands(command, f"{name} {word}")
            continue
        told = {"required": action.required, "nargs": action.nargs, "choices": action.choices and [*action.choices]}
        default = vars(action).get("function_default")
        told["default"] = default if default is None else str(default)
        key = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        arguments[key] = {key: value for key, value in told.items() if value not in (None, False)}
    yield name, arguments


def recipes() -> dict[str, Any]:
    """Return the values of each recipe: the usual ones once, and for each recipe those that differ or are missing."""
    full = {
        name: dict(_flat(yaml.load(read_recipe(find_recipe(name)).yaml, yaml.CSafeLoader), ""))
        for name in list_recipes()
    }
    counts: dict[str, Counter[str]] = {}
    for values in full.values():
        for key, value in values.items():
            counts.setdefault(key, Counter())[json.dumps(value)] += 1
    common = {key: json.loads(count.most_common(1)[0][0]) for key, count in sorted(counts.items())}
    usual = {key: value for key, value in common.items() if counts[key].total() > len(full) / 2}
    differences = {
        name: {key: value for key, value in sorted(values.items()) if key not in usual or usual[key] != value}
        | {"without": sorted(usual.keys() - values)}
        for name, values in full.items()
    }
    return {"usual": usual} | differences


def _flat(content: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict) and content:
        for name, value in content.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, content


def run_files(run: Path) -> list[str]:
    """Return the names of the files in the directory of a run."""
    names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return [re.sub(r"tfevents\..*", "tfevents", name) for name in names]


def read() -> dict[str, Any]:
    """Read the snapshot."""
    return json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def _write() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))
        assert main(["train", "--recipe", str(recipe), "--out", f"{folder}/run", "--training.epochs", "2"]) == 0
        files = run_files(folder / "run")
    parts = {"names": public_names(), "commands": commands(), "recipes": recipes(), "run": {"files": files}}
    texts = []
    for part, entries in parts.items():  # one line for each entry, for short differences
        lines = (f"  {json.dumps(key)}: {json.dumps(entries[key], sort_keys=True)}" for key in sorted(entries))
        texts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    SNAPSHOT.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _write()
