"""Flags as changes of a recipe's content: ``--optim.lr 0.01`` is ``{"optim": {"lr": "0.01"}}``."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes.second_phase import merge
from proxemic.recipes.values import as_yaml

__all__ = ["apply_flags", "read_flags"]


def read_flags(flags: Sequence[str]) -> list[tuple[str, str | None]]:
    """Give the keys and the values of flags, None where one has none; ``init_args`` is left out of keys.

    Raises:
        UserError: If one is no flag.

    >>> read_flags(["--optim.lr", "-0.1", "--loss.init_args.alpha=3"])
    [('optim.lr', '-0.1'), ('loss.alpha', '3')]
    """
    words = list(flags)
    found: list[tuple[str, str | None]] = []
    while words:
        name, given, value = words.pop(0).partition("=")
        if not name.startswith("--") or not name.strip("-"):
            raise UserError(f"{name} is not known here: a value of the recipe is given as --optim.lr 0.01.")
        key = ".".join(part for part in name[2:].split(".") if part != "init_args")
        if not given:
            value = words.pop(0) if words and not words[0].startswith("--") else None
        found.append((key, value))
    return found


def apply_flags(content: Any, flags: Sequence[tuple[str, str | None]]) -> Any:
    """Lay the values of flags over a recipe's content.

    A flag that names another class leaves the arguments of the class before behind, as they were chosen for that one: a
    loss that took over the number of proxies of the loss before would not be the one that was named.

    >>> apply_flags({"loss": {"class_path": "A", "init_args": {"x": 1}}}, [("loss.y", "2"), ("loss", "B")])
    {'loss': {'class_path': 'B', 'init_args': {'y': '2'}}}
    """
    # A class that a flag names comes before the values that other flags give it.
    for key, value in sorted(flags, key=lambda flag: flag[0].removesuffix(".class_path").count(".")):
        content = _laid(content, key.removesuffix(".class_path").split("."), value or "")
    return content


def _laid(content: Any, names: Sequence[str], value: str) -> Any:
    if not names:
        return _replaced(content, value)
    content = as_yaml(content) if isinstance(content, str) else content
    if isinstance(content, list) and content:
        return [*content[:-1], _laid(content[-1], names, value)]  # of several, the last is meant
    if isinstance(content, str):
        content = {"class_path": content}
    if not isinstance(content, Mapping):
        content = {}
    name, *rest = names
    if "class_path" in content:
        return {**content, "init_args": _laid(content.get("init_args") or {}, names, value)}
    return {**content, name: _laid(content.get(name), rest, value)}


def _replaced(content: Any, value: str) -> Any:
    changes = as_yaml(value)
    is_made = isinstance(content, Mapping) and "class_path" in content
    if isinstance(changes, str) and is_made:
        changes = {"class_path": changes}
    if not (isinstance(changes, Mapping) and isinstance(content, Mapping)):
        return None if changes is None and value else value
    return merge(content, changes)
