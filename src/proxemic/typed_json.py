"""Read JSON files with a schema, given as a dataclass or a typed dictionary."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from proxemic.errors import UserError
from proxemic.files import read_json

T = TypeVar("T")


def read_typed(path: Path, form: type[T]) -> T:
    """Read a file of `proxemic.files.write_json` as a dataclass or ``TypedDict``.

    A dataclass allows only its fields; a ``TypedDict`` checks its own keys and keeps the others.

    Raises:
        UserError: If the file is missing or damaged.
    """
    content = read_json(path)
    try:
        return _build(content, form, "")
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): put the file back from a copy.") from error


def _build(value: Any, form: Any, name: str) -> Any:
    """Check a value against a type, and convert lists and mappings to tuples and dataclasses."""
    origin, inner = get_origin(form), get_args(form)
    if form is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in inner:
            try:
                return _build(value, option, name)
            except ValueError:
                if option is inner[-1]:
                    raise
    if origin is Literal and value in inner:
        return value
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_build(item, inner[0], name) for item in value)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _build(item, inner[1], f"{name} {key}".strip()) for key, item in value.items()}
    if is_typeddict(form) and isinstance(value, dict):
        return _typed_dict(value, form)
    if is_dataclass(form) and isinstance(value, dict):
        return _dataclass(value, form)
    if form is float and isinstance(value, int | float) and not isinstance(value, bool) and _fits(value):
        return float(value)
    if form in (str, int, bool, types.NoneType) and type(value) is form and _fits(value):
        return value
    raise ValueError(f"{name or 'its content'} is {str(value)[:40]!r}")


def _typed_dict(content: Mapping[str, Any], form: Any) -> dict[str, Any]:
    hints = get_type_hints(form)
    if missing := [key for key in sorted(form.__required_keys__) if key not in content]:
        raise ValueError(f"{missing[0]} is missing")
    return {key: _build(item, hints.get(key, Any), key) for key, item in content.items()}


def _dataclass(content: Mapping[str, Any], form: Any) -> Any:
    hints = get_type_hints(form)
    known = {field.name: field for field in fields(form)}
    if unknown := [key for key in content if key not in known]:
        raise ValueError(f"the key {unknown[0]} is unknown")
    needed = (item for item in known.values() if item.default is MISSING and item.default_factory is MISSING)
    if missing := [item.name for item in needed if item.name not in content]:
        raise ValueError(f"{missing[0]} is missing")
    return form(**{key: _build(value, hints[key], key) for key, value in content.items()})


def _fits(value: Any) -> bool:
    """Return whether a value is not an integer beyond 64 bits."""
    return not isinstance(value, int) or -(2**63) <= value < 2**63
