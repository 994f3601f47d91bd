"""Write the JSON Schema of recipe files, from which editors complete and check keys.

    python -m proxemic.recipes.schema

writes the schema. It contains classes of other packages in their installed versions, and states these versions.
"""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from importlib.metadata import version
from typing import Any, Literal, get_args, get_origin

from proxemic.recipes import SCHEMA
from proxemic.recipes.build import LINKS
from proxemic.recipes.hints import (
    FREE,
    arguments_of,
    elements,
    field_types,
    is_container,
    is_mapping,
    join_key,
    section_in,
    tuple_length,
    union_members,
)
from proxemic.recipes.slots import Slot, slot_of
from proxemic.recipes.writing import content_of
from proxemic.training.recipe import Recipe

_SCALARS = {bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ARGUMENT = re.compile(r"^    \**(\w+)[^:\n]*:((?:.*\n?)(?:     +.*\n?|\n)*)", re.MULTILINE)
_PACKAGES = ("torch", "pytorch-metric-learning")


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe file. No key is required, since an extended recipe may give it."""
    writer = _Writer()
    whole = writer.section(Recipe, "")
    names = {"type": "string", "description": "Name or path of a recipe to extend, whose values this one takes."}
    whole["properties"]["extends"] = {"anyOf": [names, {"type": "array", "items": names, "minItems": 1}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made with " + ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "title": "A recipe of proxemic",
        **whole,
        "$defs": dict(sorted(writer.definitions.items())),
    }


class _Writer:
    """Writes the schemas of hints; sections and classes become definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}

    def section(self, kind: type, key: str) -> dict[str, Any]:
        """Return the schema of a section."""
        docs, hints = argument_docs(kind), field_types(kind)
        names = {field.name: field.default for field in fields(kind) if join_key(key, field.name) not in LINKS}
        keys = {
            name: self.value(hints[name], join_key(key, name)) | _note(docs.get(name, ""), default)
            for name, default in names.items()
        }
        return {"type": "object", "properties": keys, "additionalProperties": False}

    def value(self, hint: Any, key: str) -> dict[str, Any]:
        """Return the schema of a value with a hint."""
        key = key.removeprefix("second_phase.")
        slot = None if section_in(hint) else slot_of(key, hint)
        if slot and slot.module:
            return self._defined(key, lambda: self._any_of(hint, slot, key))
        return self._any_of(hint, slot, key)

    def _any_of(self, hint: Any, slot: Slot | None, key: str) -> dict[str, Any]:
        kinds: list[dict[str, Any]] = []
        for member in union_members(hint):
            known = self._member(member, key)
            if member in FREE or not (known or slot):
                return {}
            kinds += known
        kinds += self._slot(slot, key) if slot else []
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}

    def _member(self, member: Any, key: str) -> list[dict[str, Any]]:
        origin = get_origin(member) or member
        if section := section_in(member):
            return [self._defined(section.__name__, lambda: self.section(section, key))]
        if origin is Literal:
            return [{"enum": list(get_args(member))}]
        if member in _SCALARS:
            return [{"type": _SCALARS[member]}]
        if inspect.isclass(origin) and issubclass(origin, Enum):
            return [{"enum": [item.name for item in origin]}]
        if is_mapping(member):
            inner = {"additionalProperties": self.value(elements(member), key)} if get_args(member) else {}
            return [{"type": "object"} | inner]
        if is_container(member):
            length = tuple_length(member)
            size = {"minItems": length, "maxItems": length} if length else {}
            return [{"type": "array", "items": self.value(elements(member), key), **size}]
        return [{"type": "string"}] if getattr(member, "__name__", "") in ("str", "Path") else []

    def _slot(self, slot: Slot, key: str) -> list[dict[str, Any]]:
        found = dict(slot.choices())
        paths = [f"{slot.module}.{name}" for name in found]
        named = {"type": "string", "title": str(slot)} | ({"examples": [*found, *paths]} if found else {})
        if not slot.called:
            return [named]
        conditions, arguments = [], set[str]()
        for name, kind in found.items():
            if inspect.isclass(kind):
                given = self._defined(f"{slot.module}.{name}", lambda kind=kind: self._arguments(kind, slot, key))
                arguments |= arguments_of(kind).keys()
                test = {"properties": {"class_path": {"enum": [name, f"{slot.module}.{name}"]}}}
                conditions.append({"if": test, "then": {"properties": {"init_args": given}}})
        keys = {"class_path": named, "init_args": {"type": "object"}, "dict_kwargs": {"type": "object"}}
        described = {"type": "object", "properties": keys, "required": ["class_path"], "additionalProperties": False}
        # A class named in the extended recipe can be changed without naming it again.
        change = {"type": "object", "not": {"required": ["class_path"]}}
        if arguments:
            change["propertyNames"] = {"enum": [*sorted(arguments), "init_args", "dict_kwargs"]}
        return [named, described | ({"allOf": conditions} if conditions else {}), change]

    def _arguments(self, kind: type, slot: Slot, key: str) -> dict[str, Any]:
        docs = argument_docs(kind) if kind.__module__.startswith("proxemic.") else {}
        given = [*arguments_of(kind).items()][slot.filled :]
        keys = {
            name: self.value(argument.hint, join_key(key, name)) | _note(docs.get(name, ""), argument.default)
            for name, argument in given
            if name not in slot.filled_names
        }
        return {"type": "object", "properties": keys, "additionalProperties": False}

    def _defined(self, name: str, write: Any) -> dict[str, Any]:
        if name not in self.definitions:
            self.definitions[name] = {}  # classes may take objects of their own kind
            self.definitions[name] = write()
        return {"$ref": f"#/$defs/{name}"}


@cache
def argument_docs(kind: type) -> Mapping[str, str]:
    """Return the description of each argument in the Google-style docstrings of a class and its bases, on one line.

    >>> from proxemic.losses import ArcFaceLoss
    >>> argument_docs(ArcFaceLoss)["scale"]
    'σ > 0.'
    """
    docs: dict[str, str] = {}
    for base in reversed(inspect.getmro(kind)):
        for docstring in (base.__doc__, base.__init__.__doc__):
            _, _, rest = inspect.cleandoc(docstring or "").partition("Args:\n")
            section = re.split(r"\n(?=\S)", rest)[0]
            docs |= {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(section)}
    return docs


def _note(text: str, default: Any) -> dict[str, Any]:
    """Return what editors show for a key: its description, and its default if that is a plain value."""
    note: dict[str, Any] = {"description": text} if text else {}
    plain = default is None or isinstance(default, str | int | float | tuple | list | dict)
    return note | {"default": content_of(default)} if plain else note


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(recipe_schema(), ensure_ascii=False) + "\n", encoding="utf-8")
