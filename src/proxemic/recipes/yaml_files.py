"""Read untrusted YAML, and refuse files that are larger, deeper or more repetitive than any recipe."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency

with optional_dependency("train"):
    import yaml

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, if there is one, is ten times faster
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ONE_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_NOT_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


class TooMuch(ValueError):
    """Raised for YAML whose values are nested too deeply, too many, or endless."""


class _Loader(_SafeLoader):
    """Read ``1e-3`` as a number, dates as text, and ``<<`` as a key, since merged values could grow without limit."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the class above has it
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(("timestamp", "merge"))]
        for first, known in _SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(_SafeDumper):
    """Quote texts that `_Loader` or another YAML reader would not read as texts."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def read_yaml(path: Path) -> Any:
    """Read a YAML file; raise `UserError` if it is invalid, too large, too deep, or has too many values."""
    try:
        if not path.is_file():  # reading a pipe would wait, and a device may never end
            raise UserError(f"{path} is not a readable YAML file: {'not a file' if path.exists() else 'not there'}.")
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} is {path.stat().st_size:,} bytes large, but a recipe has at most {MAX_BYTES:,}.")
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path} is not a readable YAML file: {' '.join(str(error).split())}") from error


def parse_yaml(text: str) -> Any:
    """Read YAML; raise `TooMuch` if it is too deep, has too many values or contains itself."""
    depth = 0
    try:
        for event in yaml.parse(text, _Loader):  # before building values, for which deep text needs a deep stack
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise TooMuch(f"values are nested more than {MAX_DEPTH} deep.")
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    for count, _ in enumerate(_values(content)):  # a few nested aliases can expand to billions of values
        if count > MAX_VALUES:
            raise TooMuch(f"it expands to more than {MAX_VALUES:,} values.")
    return content


def _values(content: Any, depth: int = 0) -> Iterator[Any]:
    if depth > MAX_DEPTH:
        raise TooMuch("an alias contains itself.")
    yield content
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _values(value, depth + 1)


def as_yaml(value: Any) -> Any:
    """Return the YAML value of a text, or the text itself if it is not YAML; other values are returned unchanged."""
    if not isinstance(value, str) or (_ONE_WORD.fullmatch(value) and value.lower() not in _NOT_TEXT):
        return value
    try:
        return parse_yaml(value)
    except TooMuch as error:
        raise UserError(f"{shown(value)} is refused: {error}") from error
    except ValueError:
        return value


def write_yaml(content: Any) -> str:
    """Return YAML with the keys in the order of the content."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def shown(value: Any) -> str:
    """Return a value as text for messages, cut to 80 characters."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
