"""Change a recipe's content, by overrides (``--optim.lr 0.01`` or ``{"optim.lr": 0.01}``) or a second phase."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes.yaml_files import as_yaml

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Flags(dict[str, str]):
    """Overrides from the command line; messages about them name the flag instead of the file."""


def read_flags(flags: Sequence[str]) -> Flags:
    """Return the overrides that flags give; ``init_args`` is removed from keys.

    >>> read_flags(["--optim.lr", "-0.1", "--loss.init_args.alpha=3"])
    {'optim.lr': '-0.1', 'loss.alpha': '3'}
    """
    overrides, others = take_flags(flags)
    if others:
        raise UserError(f"{others[0]} is not known here: a value of the recipe is given as --optim.lr 0.01.")
    return overrides


def take_flags(words: Sequence[str], known: Container[str] = ()) -> tuple[Flags, list[str]]:
    """Separate overrides from the words of a command, whose own flags are ``known``; return both.

    >>> take_flags(["own", "--out", "run", "--optim.lr", "0.1", "vectors"], known={"--out"})
    ({'optim.lr': '0.1'}, ['own', '--out', 'run', 'vectors'])
    """
    left, others, overrides = list(words), list[str](), Flags()
    while left:
        word = left.pop(0)
        name, given, value = word.partition("=")
        if name in known or not name.startswith("--") or not name.strip("-"):
            others.append(word)
            continue
        if not given:
            if not left or left[0].startswith("--"):
                from proxemic.training.recipe import Recipe

                if name[2:].partition(".")[0] not in (sections := sorted(Recipe.__dataclass_fields__)):
                    raise UserError(f"There is no flag {name}: allowed are --{', --'.join(sections)}.")
                raise UserError(f"{name} has no value: write it after the flag, as in --optim.lr 0.01.")
            value = left.pop(0)
        overrides[".".join(part for part in name[2:].split(".") if part != "init_args")] = value
    return overrides, others


def as_flags(overrides: Mapping[str, object]) -> tuple[str, ...]:
    """Write overrides as flags, for the files of comparisons and studies."""
    pairs = (
        (key, override if isinstance(override, str) else json.dumps(override, default=str))
        for key, override in overrides.items()
    )
    return tuple(word for key, text in pairs for word in (f"--{key}", text))


def apply_overrides(content: Any, overrides: Mapping[str, Any]) -> Any:
    """Apply overrides to a recipe's content; naming another class drops the arguments of the earlier one."""
    keys = {key: [part for part in key.split(".") if part not in ("class_path", "init_args")] for key in overrides}
    # An override that names a class is applied before those for its arguments.
    for key in sorted(overrides, key=lambda key: len(keys[key])):
        content = _override(content, keys[key], overrides[key])
    return content


def _override(content: Any, names: Sequence[str], value: Any) -> Any:
    if not names:
        return _replace(content, value)
    content = as_yaml(content)
    if isinstance(content, list) and content:
        return [*content[:-1], _override(content[-1], names, value)]  # of several, the last one counts
    if isinstance(content, str):
        content = {"class_path": content}
    if not isinstance(content, Mapping):
        content = {}
    name, *rest = names
    if "class_path" in content:
        return {**content, "init_args": _override(content.get("init_args") or {}, names, value)}
    return {**content, name: _override(content.get(name), rest, value)}


def _replace(content: Any, value: Any) -> Any:
    changes = as_yaml(value)
    if isinstance(changes, str) and isinstance(content, Mapping) and "class_path" in content:
        changes = {"class_path": changes}
    merged = merge(content, changes) if isinstance(changes, Mapping) else value
    return value if merged is changes else merged  # a text may look like a mapping


def merge(base: Any, changes: Any) -> Any:
    """Apply changes to a part of a recipe; arguments of a class can be changed without naming it.

    >>> loss = {"class_path": "Loss", "init_args": {"alpha": 1, "beta": 2}}
    >>> merge({"loss": loss, "seed": 0}, {"loss": {"alpha": 3}})
    {'loss': {'class_path': 'Loss', 'init_args': {'alpha': 3, 'beta': 2}}, 'seed': 0}
    >>> merge(loss, {"class_path": "Other"})
    {'class_path': 'Other'}
    >>> merge("Loss", {"alpha": 3})
    {'class_path': 'Loss', 'init_args': {'alpha': 3}}
    >>> merge({"alpha": 3}, loss)  # the loss of a second phase holds changes alone
    {'class_path': 'Loss', 'init_args': {'alpha': 1, 'beta': 2}}
    """
    if isinstance(base, str) and isinstance(changes, Mapping):
        base = {"class_path": base} if _NAME.fullmatch(base) else as_yaml(base)
    if not (isinstance(base, Mapping) and isinstance(changes, Mapping)):
        return changes
    if "class_path" in base:
        if not _same_class(changes.get("class_path", base["class_path"]), base["class_path"]):
            return changes
        named = "class_path" in changes or "init_args" in changes
        inner = changes.get("init_args") or {} if named else changes
        more = {key: value for key, value in changes.items() if named and key != "class_path"}
        return {**base, **more, "init_args": merge(base.get("init_args") or {}, inner)}
    if "class_path" in changes:
        return {**changes, "init_args": merge(base.get("init_args", base), changes.get("init_args") or {})}
    return {**base, **{key: merge(base.get(key), value) for key, value in changes.items()}}


def differences(base: Any, changed: Any) -> Any:
    """Return the smallest changes by which `merge` turns ``base`` into ``changed``; {} if they are equal.

    >>> loss = {"class_path": "Loss", "init_args": {"alpha": 1, "beta": 2}}
    >>> differences({"loss": loss, "seed": 0}, {"loss": merge(loss, {"alpha": 3}), "seed": 0})
    {'loss': {'alpha': 3}}
    """
    if "class_path" in base and base["class_path"] != changed["class_path"]:
        return changed
    base, changed = (value.get("init_args", {}) if "class_path" in base else value for value in (base, changed))
    changes = {}
    for key, value in changed.items():
        before = base.get(key)
        if value != before:
            nested = isinstance(value, Mapping) and isinstance(before, Mapping)
            changes[key] = differences(before, value) if nested else value
    return changes


def _same_class(one: object, other: object) -> bool:
    """Return whether two import paths name the same class; a name without a package matches any."""
    one, other = str(one), str(other)
    if "." in one and "." in other:
        return one == other
    return one.rpartition(".")[2] == other.rpartition(".")[2]
