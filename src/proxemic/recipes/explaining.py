"""Explain the keys of recipes for ``proxemic recipes explain``, from the JSON Schema, which is fast to read."""

import difflib
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes import SCHEMA

_WORDS = {"boolean": "true or false", "integer": "a whole number", "number": "a number", "null": "null"}

Schema = dict[str, Any]


def explain(key: str) -> str:
    """Describe a key of recipes: its purpose, its allowed values and its default.

    Args:
        key: A key such as ``optim.lr``, or the last part of keys, all of which are explained.

    Raises:
        UserError: If there is no such key; the most similar one is suggested.

    >>> print(explain("training.warmup_epochs"))
    training.warmup_epochs
      Number of first epochs in which only head and proxies are trained, and not the backbone.
      A whole number; 0 by default.
    """
    keys = [*_below(_schema(), "")]
    found = [entry for entry in keys if entry[0] == key]
    if not found and "." not in key:
        ends = [entry for entry in keys if entry[0].endswith(f".{key}")]
        found = [entry for entry in ends if not entry[0].startswith("second_phase.")] or ends
    if not found:
        names = [path if "." in key else path.rpartition(".")[2] for path, _, _ in keys]
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "give a key as optim.lr, or the last part of one, as lr."
        raise UserError(f"There is no key {key}: {hint}")
    owners: dict[tuple[str, str], dict[str, None]] = {}
    for path, owner, schema in found:
        owners.setdefault((path, _text(schema)), {})[owner] = None
    return "\n".join(
        f"{path}{' of ' if any(names) else ''}{', '.join(names)}\n{text}" for (path, text), names in owners.items()
    )


def recipe_keys() -> list[str]:
    """List the keys of recipes, sorted, without those of the second phase, which are the same.

    >>> [key for key in recipe_keys() if key.startswith("optim.clip")]
    ['optim.clip_backbone_norm', 'optim.clip_norm', 'optim.clip_value']
    """
    return sorted({key for key, _, _ in _below(_schema(), "") if not key.startswith("second_phase.")})


@cache
def _schema() -> Schema:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


def _below(schema: Schema, key: str) -> Iterator[tuple[str, str, Schema]]:
    """Yield all keys below a key, each with its schema and the class whose argument it is, if any."""
    for option in _options(schema):
        holders = [
            (case["if"]["properties"]["class_path"]["enum"][0], case["then"]["properties"]["init_args"])
            for case in option.get("allOf", ())
        ]
        if "items" in option:
            yield from _below(option["items"], key)
        elif "class_path" not in option.get("properties", {}):
            holders = [("", option)]
        for owner, holder in holders:
            for name, property_ in _resolved(holder).get("properties", {}).items():
                path = f"{key}.{name}".lstrip(".")
                yield path, owner, property_
                yield from _below(property_, path)


def _text(schema: Schema) -> str:
    """Return the purpose, allowed values and default of one key in a few lines."""
    allowed = _in_words(schema)
    default = f"; {json.dumps(schema['default'])} by default" if "default" in schema else ""
    lines = (schema.get("description", ""), f"{allowed[:1].upper()}{allowed[1:]}{default}." if allowed else "")
    return "\n".join(textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="  ") for line in lines if line)


def _resolved(schema: Schema) -> Schema:
    return _schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema


def _options(schema: Schema) -> list[Schema]:
    schema = _resolved(schema)
    return [option for item in schema["anyOf"] for option in _options(item)] if "anyOf" in schema else [schema]


def _in_words(schema: Schema) -> str:
    return " or ".join(dict.fromkeys(filter(None, map(_option_in_words, _options(schema)))))


def _option_in_words(option: Schema) -> str:
    names = [name for name in option.get("examples", ()) if "." not in name]
    match option:
        case {"enum": values}:
            return f"one of {', '.join(map(repr, values))}"
        case {"type": "array", "items": items}:
            length = f" of {option['minItems']}" if "maxItems" in option else ""
            return f"a list{length}, each {_in_words(items) or 'any value'}"
        case {"type": "string"}:
            return option.get("title", "a text") + (f", such as {', '.join(names)}" if names else "")
        case {"properties": keys} if "class_path" not in keys:
            return f"a section with the keys {', '.join(keys)}"
    return _WORDS.get(option.get("type", ""), "")
