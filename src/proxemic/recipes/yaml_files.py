"""Reads YAML that need not be trusted: larger, deeper or more repetitive files than any recipe are refused."""

from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency

with optional_dependency("train"):
    import yaml


class TooMuch(ValueError):
    """Raised for a text that stands for too deep, too large, or endless values."""


MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000

_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # that of libyaml, where there is one, is ten times faster


class _Loader(_Safe):
    """Reads dates as text, as the parser of recipes does, since both must read the same."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the class above has it
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in _Safe.yaml_implicit_resolvers.items()
    }


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_yaml(path: Path) -> Any:
    """Read a YAML file; `UserError` if that is not possible, or it is too large, too deep, or has too many values."""
    try:
        if not path.is_file():  # a pipe would be waited for, a device read for ever
            raise UserError(f"{path} is not a readable YAML file: {'it is no file' if path.exists() else 'not there'}.")
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} is {path.stat().st_size:,} bytes large, but a recipe has at most {MAX_BYTES:,}.")
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is not a readable YAML file: {' '.join(str(error).split())}") from error


def parse_yaml(text: str) -> Any:
    """Read a YAML text; `TooMuch` if it is too deep, has too many values or contains itself."""
    try:
        _check_size(text)
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error


def with_current_names(content: Any) -> Any:
    """Rename, in place, the keys of a recipe that had other names in earlier versions.

    >>> with_current_names({"batches": {"size": 8, "parts": 2}})
    {'batches': {'size': 8, 'micro_batches': 2}}
    """
    batches = content.get("batches") if isinstance(content, dict) else None
    if isinstance(batches, dict) and "parts" in batches:
        batches["micro_batches"] = batches.pop("parts")
    return content


def shown(value: Any) -> str:
    """A value as messages show it, cut to 80 characters."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def as_yaml(text: str) -> Any:
    """What a text stands for if it is read as YAML, or else the text itself."""
    try:
        return parse_yaml(text)
    except TooMuch as error:
        raise UserError(f"{shown(text)} is refused: {error}") from error
    except ValueError:
        return text


def write_yaml(content: Any) -> str:
    """Write YAML in the order of the content."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def _check_size(text: str) -> None:
    """Count the values before any of them is made: a few aliases of aliases stand for billions."""
    sizes: dict[str, int] = {}
    begun: list[list[Any]] = [[None, 0]]  # the anchor and the size of each collection around
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append([event.anchor, 1])
            size = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = begun.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise TooMuch(f"*{event.anchor} stands for what it is a part of, or for nothing.")
            size = sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[event.anchor] = 1
        else:
            size = 0
        begun[-1][1] += size
        if len(begun) > MAX_DEPTH:
            raise TooMuch(f"values are nested more than {MAX_DEPTH} deep.")
        if begun[-1][1] > MAX_VALUES:
            raise TooMuch(f"it stands for more than {MAX_VALUES:,} values.")
