"""What a key of recipes means, for ``proxemic recipes explain``: read from the JSON Schema, which takes no time."""

import difflib
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes import SCHEMA

_WORDS = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "null": "null"}


@cache
def _schema() -> dict[str, Any]:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


def explain(key: str) -> str:
    """Say what a key of recipes is for, what it may be and what it is by default.

    Args:
        key: A key, as ``optim.lr``, or the last part of one: all keys that end in it are explained.

    Raises:
        UserError: If there is no such key; the nearest is suggested.

    >>> print(explain("training.warmup_epochs"))
    training.warmup_epochs
      In the first of these the backbone stands still; only head and proxies are trained.
      A whole number; 0 by default.
    """
    found = _find(key)
    if not found and "." not in key:
        found = [value for value in _sections(_Value("", "", _schema())) if value.name == key]
    if not found:
        above = _find(key.rpartition(".")[0])
        near = difflib.get_close_matches(key, [each.key for value in above for each in value.below()], n=1)
        hint = f"did you mean {near[0]}?" if near else "give a key as optim.lr, or the last part of one, as lr."
        raise UserError(f"There is no key {key}: {hint}")
    owners: dict[tuple[str, str], list[str]] = {}
    for value in found:
        owners.setdefault((value.key, value.text), []).append(value.owner)
    return "\n".join(
        f"{path}{' of ' if any(names) else ''}{', '.join(dict.fromkeys(names))}\n{text}"
        for (path, text), names in owners.items()
    )


@dataclass(frozen=True)
class _Value:
    """A key, the class that has it as an argument if there is one, and its schema."""

    key: str
    owner: str
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    def below(self) -> Iterator["_Value"]:
        """Yield the keys of a section, or the arguments of all classes that the key may name."""
        for option in _options(self.schema):
            option = option.get("items", option)
            for each in _options(option):
                classes = [(case["if"]["properties"], case["then"]["properties"]) for case in each.get("allOf", ())]
                holders = [(test["class_path"]["enum"][0], given["init_args"]) for test, given in classes]
                if not classes and "class_path" not in each.get("properties", {}):
                    holders = [("", each)]
                for owner, holder in holders:
                    for name, schema in _resolved(holder).get("properties", {}).items():
                        yield _Value(f"{self.key}.{name}".lstrip("."), owner, schema)

    @property
    def text(self) -> str:
        """What the key is for, what it may be, and its default, in a few lines."""
        allowed = " or ".join(dict.fromkeys(filter(None, map(_in_words, _options(self.schema)))))
        default = json.dumps(self.schema["default"]) if "default" in self.schema else ""
        default = f"; {default} by default" if default else ""
        lines = (self.schema.get("description", ""), f"{allowed[:1].upper()}{allowed[1:]}{default}." if allowed else "")
        return "\n".join(
            textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="  ") for line in lines if line
        )


def _find(key: str) -> list[_Value]:
    found = [_Value("", "", _schema())]
    for name in key.split(".") if key else ():
        found = [each for value in found for each in value.below() if each.name == name]
    return found


def _sections(value: _Value) -> Iterator[_Value]:
    """Yield the keys of all sections."""
    for each in value.below():
        if not each.owner:
            yield each
            yield from _sections(each)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return _schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema


def _options(schema: dict[str, Any]) -> list[dict[str, Any]]:
    schema = _resolved(schema)
    return [option for each in schema["anyOf"] for option in _options(each)] if "anyOf" in schema else [schema]


def _in_words(option: dict[str, Any]) -> str:
    if "enum" in option:
        return f"one of {', '.join(map(repr, option['enum']))}"
    if option.get("type") == "array":
        length = f" of {option['minItems']}" if "maxItems" in option else ""
        inner = " or ".join(dict.fromkeys(filter(None, map(_in_words, _options(option["items"])))))
        return f"a list{length}, each {inner}" if inner else f"a list{length}"
    if option.get("type") == "string":
        names = [name for name in option.get("examples", ()) if "." not in name]
        named = option.get("title", "a text")
        return f"{named}, such as {', '.join(names)}" if names else named
    if option.get("additionalProperties") is False and "class_path" not in option["properties"]:
        return f"a section with the keys {', '.join(option['properties'])}"
    return _WORDS.get(option.get("type", ""), "")
