"""The second phase in a recipe file: what changes, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxemic.errors import UserError

__all__ = ["differences", "merge", "part_flags", "read_changes"]

_PREFIX = "--second_phase"


def part_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the flags of the second phase from the others.

    >>> part_flags(["--seed", "1", "--second_phase.loss.alpha", "3", "--second_phase.epochs=2"])
    (['--seed', '1'], ['--second_phase.loss.alpha', '3', '--second_phase.epochs=2'])
    """
    own: list[str] = []
    later: list[str] = []
    target = own
    for word in flags:
        if word.startswith("--"):
            name = word.partition("=")[0]
            target = later if name == _PREFIX or name.startswith(f"{_PREFIX}.") else own
        target.append(word)
    return own, later


def read_changes(content: Any, flags: Sequence[str]) -> tuple[int, dict[str, Any], list[str]] | None:
    """Give the number of epochs, the changes that the file asks for, and the flags for the recipe's other keys.

    Args:
        content: What the recipe has under ``second_phase``.
        flags: Those that `part_flags` found.

    Returns:
        None where there is no second phase: nothing is given, or ``--second_phase null``.

    Raises:
        UserError: For an unknown key, or without a number of epochs.
    """
    if content is not None and not isinstance(content, Mapping):
        raise UserError(f"second_phase is {content!r}, but must be null or map epochs, loss and optim to values.")
    changes = dict(content or {})
    words = list(flags)
    rest: list[str] = []
    while words:
        name, given, value = words.pop(0).partition("=")
        value = value if given or not words else words.pop(0)
        key = name.removeprefix(_PREFIX).lstrip(".")
        if not key and value in ("null", "None"):
            return None
        if not key or not value:
            raise UserError(
                f"{name} {value}".rstrip()
                + " cannot be read: give --second_phase null, or a value to one of its keys, "
                "as --second_phase.loss.alpha 2."
            )
        if key == "epochs":
            changes["epochs"] = value
        else:
            rest += [f"--{key}", value]
    if not changes and not rest:
        return None
    allowed = ("epochs", "loss", "optim")
    for key in [*changes, *(word[2:].partition(".")[0] for word in rest[::2])]:
        if key not in allowed:
            raise UserError(f"There is no key second_phase.{key}: allowed are {', '.join(allowed)}.")
    epochs = str(changes.pop("epochs", ""))
    if not epochs.isdigit():
        came = f"is {epochs}, but must be a whole number" if epochs else "is missing: give the number"
        raise UserError(f"second_phase.epochs {came} of epochs, the last ones of training.epochs.")
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
    """The least changes that `merge` makes ``changed`` of ``base`` with; {} where they are the same.

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
    """Whether two import paths mean one class; a name alone means that of any package."""
    if "." in one and "." in other:
        return one == other
    return one.rpartition(".")[2] == other.rpartition(".")[2]
