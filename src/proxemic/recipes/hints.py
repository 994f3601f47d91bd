"""Read the type hints of recipes: members of unions, elements of lists, arguments of classes; put hints in words."""

import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from proxemic.arguments import constructor_parameters

PAIR_PACKAGE = "pytorch_metric_learning."

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


class UntypedArgument:
    """Hint for the arguments of pytorch-metric-learning (PML), which has no annotations."""


FREE = (Any, object, UntypedArgument, inspect.Parameter.empty)
"""Hints that take any plain value."""


@dataclass(frozen=True)
class Argument:
    """An argument of a class: its hint (or `inspect.Parameter.empty`), whether it is required, and its default."""

    hint: Any
    required: bool
    default: Any


@cache
def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or any other hint alone."""
    origin = get_origin(hint)
    if origin is Annotated:
        return union_members(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return tuple(member for arg in get_args(hint) for member in union_members(arg))
    return (hint,)


@cache
def elements(hint: Any) -> Any:
    """Return the hint of a list's elements or a mapping's values; `Any` if it has none."""
    held = [member for member in union_members(hint) if is_container(member)]
    inner = [arg for member in held for arg in get_args(member)[-1 if is_mapping(member) else 0 :]]
    inner = [item for item in inner if item is not Ellipsis]
    return Union[tuple(inner)] if inner else Any  # noqa: UP007 - any number of members


def is_container(member: Any) -> bool:
    """Return whether a hint is for a list, a mapping or the like, and not for another iterable class."""
    origin = get_origin(member) or member
    known = inspect.isclass(origin) and origin.__module__ in ("builtins", "collections", "collections.abc")
    return known and origin not in (str, bytes) and issubclass(origin, Iterable)


def is_mapping(member: Any) -> bool:
    """Return whether a hint is for a mapping."""
    return is_container(member) and issubclass(get_origin(member) or member, Mapping)


@cache
def section_in(hint: Any) -> type | None:
    """Return the dataclass of a recipe's section from its hint; None for classes that a recipe chooses."""
    for member in union_members(hint):
        if inspect.isclass(member) and member is not object and all(map(is_dataclass, inspect.getmro(member)[:-1])):
            return member
    return None


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the hints of a dataclass's fields."""
    return get_type_hints(kind, include_extras=True)


@cache
def arguments_of(kind: type) -> dict[str, Argument]:
    """Return the arguments of a class in order, including those passed on to its bases by ``**kwargs``."""
    arguments: dict[str, Argument] = {}
    for name, (owner, parameter) in constructor_parameters(kind).items():
        hint = _hint(owner, parameter)
        hint = Union[hint, None] if parameter.default is None else hint  # noqa: UP007 - | may not apply to it
        # A class may pass these to its bases itself.
        arguments[name] = Argument(hint, owner is kind and parameter.default is parameter.empty, parameter.default)
    return arguments


def _hint(owner: type, parameter: inspect.Parameter) -> Any:
    """Return the hint of an argument; `inspect.Parameter.empty` if none exists at run time."""
    hint, default = parameter.annotation, parameter.default
    if hint is parameter.empty and owner.__module__.startswith(PAIR_PACKAGE):
        return UntypedArgument
    if hint is parameter.empty and default is not parameter.empty:
        if type(default) in (bool, float):
            return type(default)
        return Any if default is None or isinstance(default, str | int) or is_container(type(default)) else hint
    if not isinstance(hint, str):
        return hint
    names = vars(inspect.getmodule(owner.__init__) or inspect.getmodule(owner))
    holder = types.SimpleNamespace(__annotations__={"it": hint})
    try:
        return get_type_hints(holder, dict(names), include_extras=True)["it"]
    except (NameError, TypeError, AttributeError):
        return parameter.empty


def tuple_length(member: Any) -> int | None:
    """Return the length of tuples with this hint; None if any is allowed."""
    inner = get_args(member)
    return len(inner) if get_origin(member) is tuple and Ellipsis not in inner else None


def in_words(hint: Any) -> str:
    """Describe the values that a hint allows, such as "null or a list, each a whole number"."""
    members = sorted(union_members(hint), key=lambda member: member is not type(None))
    return " or ".join(dict.fromkeys(map(_in_words, members)))


def _in_words(member: Any) -> str:
    if get_origin(member) is Literal:
        return f"one of {', '.join(map(repr, get_args(member)))}"
    if is_mapping(member):
        return "a mapping"
    if is_container(member):
        length = tuple_length(member)
        return f"a list{f' of {length}' if length else ''}, each {in_words(elements(member))}"
    if member is type(None):
        return "null"
    return _WORDS.get(member, f"a {member.__name__}" if inspect.isclass(member) else str(member))


def join_key(key: str, name: object) -> str:
    """Join a key to the one above it, which is empty at the top of a recipe."""
    return f"{key}.{name}".lstrip(".")
