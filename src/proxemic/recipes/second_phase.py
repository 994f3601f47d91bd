"""The second phase in a recipe file, which lists what changes and nothing else."""

from collections.abc import Mapping
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes.values import as_yaml

_KEY = "second_phase"


def split_overrides(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split overrides into those of the recipe and those of the second phase, without the prefix of their keys.

    >>> split_overrides({"seed": 1, "second_phase.loss.alpha": 3, "second_phase.epochs": 2})
    ({'seed': 1}, {'loss.alpha': 3, 'epochs': 2})
    """
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for key, value in overrides.items():
        name, _, rest = key.partition(".")
        (second if name == _KEY else first)[rest if name == _KEY else key] = value
    return first, second


def read_changes(content: Any, overrides: Mapping[str, Any]) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """The epochs, the changes in the recipe's ``second_phase``, and the other overrides of it; None without a phase."""
    rest = dict(overrides)
    if "" in rest:
        given = rest.pop("")
        content = as_yaml(given) if isinstance(given, str) else given
        if content is None:
            return None
    if content is not None and not isinstance(content, Mapping):
        raise UserError(f"second_phase is {content!r}, but must be null or map epochs, loss and optim to values.")
    changes = dict(content or {})
    if "epochs" in rest:
        changes["epochs"] = rest.pop("epochs")
    if not changes and not rest:
        return None
    allowed = ("epochs", "loss", "optim")
    for key in [*changes, *(key.partition(".")[0] for key in rest)]:
        if key not in allowed:
            raise UserError(f"There is no key second_phase.{key}: allowed are {', '.join(allowed)}.")
    epochs = str(changes.pop("epochs", ""))
    if not epochs.isdigit():
        problem = f"is {epochs}, but must be a whole number" if epochs else "is missing: give the number"
        raise UserError(f"second_phase.epochs {problem} of epochs, the last ones of training.epochs.")
    return int(epochs), changes, rest


def merge(base: Any, changes: Any) -> Any:
    """Apply changes to a part of a recipe; the arguments of a class are changed without naming it.

    >>> loss = {"class_path": "Loss", "init_args": {"alpha": 1, "beta": 2}}
    >>> merge({"loss": loss, "seed": 0}, {"loss": {"alpha": 3}})
    {'loss': {'class_path': 'Loss', 'init_args': {'alpha': 3, 'beta': 2}}, 'seed': 0}
    >>> merge(loss, {"class_path": "Other"})
    {'class_path': 'Other'}
    """
    if not (isinstance(base, Mapping) and isinstance(changes, Mapping)):
        return changes
    if "class_path" in base:
        if not _same_class(changes.get("class_path", base["class_path"]), base["class_path"]):
            return changes
        named = "class_path" in changes or "init_args" in changes
        inner = changes.get("init_args") or {} if named else changes
        return {**base, "init_args": merge(base.get("init_args") or {}, inner)}
    return {**base, **{key: merge(base.get(key), value) for key, value in changes.items()}}


def differences(base: Any, changed: Any) -> Any:
    """The smallest changes with which `merge` turns ``base`` into ``changed``; {} where they are the same.

    >>> loss = {"class_path": "Loss", "init_args": {"alpha": 1, "beta": 2}}
    >>> differences({"loss": loss, "seed": 0}, {"loss": merge(loss, {"alpha": 3}), "seed": 0})
    {'loss': {'alpha': 3}}
    """
    if "class_path" in base and base["class_path"] != changed["class_path"]:
        return changed
    base, changed = (each.get("init_args", {}) if "class_path" in base else each for each in (base, changed))
    found = {}
    for key, value in changed.items():
        before = base.get(key)
        if value != before:
            nested = isinstance(value, Mapping) and isinstance(before, Mapping)
            found[key] = differences(before, value) if nested else value
    return found


def _same_class(one: str, other: str) -> bool:
    """Whether two import paths name one class; a name alone may be of any package."""
    if "." in one and "." in other:
        return one == other
    return one.rpartition(".")[2] == other.rpartition(".")[2]
