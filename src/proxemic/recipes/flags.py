"""Overrides of a recipe's values: ``--optim.lr 0.01``, or ``{"optim.lr": 0.01}``, is ``{"optim": {"lr": 0.01}}``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes.second_phase import merge
from proxemic.recipes.values import as_yaml
from proxemic.training.recipe import Recipe


class Flags(dict[str, str]):
    """Overrides from the command line: messages about them name the flag, not the file."""


def read_flags(flags: Sequence[str]) -> Flags:
    """The overrides that flags stand for; ``init_args`` is left out of keys.

    >>> read_flags(["--optim.lr", "-0.1", "--loss.init_args.alpha=3"])
    {'optim.lr': '-0.1', 'loss.alpha': '3'}
    """
    words = list(flags)
    overrides = Flags()
    while words:
        name, given, value = words.pop(0).partition("=")
        if not name.startswith("--") or not name.strip("-"):
            raise UserError(f"{name} is not known here: a value of the recipe is given as --optim.lr 0.01.")
        if not given:
            if not words or words[0].startswith("--"):
                if name[2:].partition(".")[0] not in (sections := sorted(Recipe.__dataclass_fields__)):
                    raise UserError(f"There is no flag {name}: allowed are --{', --'.join(sections)}.")
                raise UserError(f"{name} has no value: write it after the flag, as in --optim.lr 0.01.")
            value = words.pop(0)
        overrides[".".join(part for part in name[2:].split(".") if part != "init_args")] = value
    return overrides


def as_flags(overrides: Mapping[str, object]) -> tuple[str, ...]:
    """Overrides as flags, which the files of comparisons and searches keep.

    >>> as_flags({"training.epochs": 5, "loss": "ArcFaceLoss"})
    ('--training.epochs', '5', '--loss', 'ArcFaceLoss')
    """
    pairs = ((key, each if isinstance(each, str) else json.dumps(each, default=str)) for key, each in overrides.items())
    return tuple(word for key, text in pairs for word in (f"--{key}", text))


def apply_overrides(content: Any, overrides: Mapping[str, Any]) -> Any:
    """Apply overrides to a recipe's content; one that names another class drops the arguments of the class before.

    >>> apply_overrides({"loss": {"class_path": "A", "init_args": {"x": 1}}}, {"loss.y": 2, "loss": "B"})
    {'loss': {'class_path': 'B', 'init_args': {'y': 2}}}
    """
    keys = {key: [part for part in key.split(".") if part not in ("class_path", "init_args")] for key in overrides}
    # A class that an override names comes before the values that other overrides give it.
    for key in sorted(overrides, key=lambda key: len(keys[key])):
        content = _override(content, keys[key], overrides[key])
    return content


def _override(content: Any, names: Sequence[str], value: Any) -> Any:
    if not names:
        return _replace(content, value)
    content = as_yaml(content) if isinstance(content, str) else content
    if isinstance(content, list) and content:
        return [*content[:-1], _override(content[-1], names, value)]  # of several, the last is meant
    if isinstance(content, str):
        content = {"class_path": content}
    if not isinstance(content, Mapping):
        content = {}
    name, *rest = names
    if "class_path" in content:
        return {**content, "init_args": _override(content.get("init_args") or {}, names, value)}
    return {**content, name: _override(content.get(name), rest, value)}


def _replace(content: Any, value: Any) -> Any:
    changes = as_yaml(value) if isinstance(value, str) else value
    is_made = isinstance(content, Mapping) and "class_path" in content
    if isinstance(changes, str) and is_made:
        changes = {"class_path": changes}
    if not (isinstance(changes, Mapping) and isinstance(content, Mapping)):
        return None if changes is None and value != "" else value
    return merge(content, changes)
