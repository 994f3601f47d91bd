"""Whether a value fits a type, and types and values in words, for messages of one sentence."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from proxemic.recipes.places import arms, elements, is_container
from proxemic.recipes.yaml_files import as_yaml

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value, or a text that stands for one, may be of a type; true where that is not known.

    >>> fits("0.5", float), fits("0.5", int), fits(None, float | None), fits(["a"], list[int])
    (True, False, True, False)
    """
    forms = [value, as_yaml(value)] if isinstance(value, str) else [value]
    return any(_fits(each, arm) for each in forms for arm in arms(annotation))


def said(annotation: Any) -> str:
    """The type in words.

    >>> said(list[int] | None), said(float), said(Literal["a", "b"])
    ('null or a list, each a whole number', 'a number', "one of 'a', 'b'")
    """
    kinds = sorted(arms(annotation), key=lambda arm: arm is not type(None))
    return " or ".join(dict.fromkeys(_said(arm) for arm in kinds))


def _fits(value: Any, arm: Any) -> bool:
    origin = get_origin(arm) or arm
    if origin is Literal:
        return value in get_args(arm)
    if arm is type(None):
        return value is None
    if arm is bool:
        return isinstance(value, bool)
    if arm in (int, float):
        try:
            number = float(value)
        except (TypeError, ValueError):
            return False
        return not isinstance(value, bool) and (arm is float or number.is_integer())
    if arm in (str, Path):
        return isinstance(value, str)
    if is_container(origin) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if is_container(origin):
        if not isinstance(value, (list, tuple)) or _length(arm) not in (None, len(value)):
            return False
        return all(fits(each, elements(arm)) for each in value)
    return True


def _said(arm: Any) -> str:
    origin = get_origin(arm) or arm
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(arm)))}"
    if is_container(origin):
        many = f"a list of {_length(arm)}" if _length(arm) else "a list"
        return "a mapping" if issubclass(origin, Mapping) else f"{many}, each {said(elements(arm))}"
    if arm is type(None):
        return "null"
    return _KINDS.get(arm, f"a {arm.__name__}" if inspect.isclass(arm) else str(arm))


def _length(arm: Any) -> int | None:
    """The length of a tuple type; None where any length is allowed."""
    inner = get_args(arm)
    return len(inner) if get_origin(arm) is tuple and Ellipsis not in inner else None
