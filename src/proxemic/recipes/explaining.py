"""What a key of recipes means, for ``proxemic recipes explain``."""

import difflib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from torch import Tensor

from proxemic.errors import UserError
from proxemic.recipes.build import LINKS, leaf_keys
from proxemic.recipes.docstrings import argument_docs
from proxemic.recipes.hints import arguments_of, elements, field_types, in_words, join_key, section_in, union_members
from proxemic.recipes.slots import Slot, slot_of
from proxemic.recipes.writing import content_of
from proxemic.recipes.yaml_files import shown
from proxemic.training.recipe import Recipe


@dataclass(frozen=True)
class _Value:
    """A value of recipes: its key, the class that takes it if that may be another one, its hint, default and text."""

    key: str
    owner: str
    hint: Any
    default: Any
    text: str

    def below(self) -> Iterator["_Value"]:
        """Yield the values of a section, or the arguments of all classes that the key may name."""
        if section := self._section:
            for field in fields(section):
                key = join_key(self.key, field.name)
                if key not in LINKS:
                    default = MISSING if field.default_factory is not MISSING else field.default
                    text = argument_docs(section).get(field.name, "")
                    yield _Value(key, "", field_types(section)[field.name], default, text)
        elif slot := self._slot:
            for kind_name, kind in slot.choices() if slot.called else ():
                given = [*arguments_of(kind).items()][slot.filled :] if inspect.isclass(kind) else []
                for name, each in given:
                    if name not in slot.filled_names:
                        text = argument_docs(kind).get(name, "")
                        yield _Value(join_key(self.key, name), kind_name, each.hint, each.default, text)

    @property
    def _section(self) -> type | None:
        return section_in(self.hint) or section_in(elements(self.hint))

    @property
    def _slot(self) -> Slot | None:
        return slot_of(self.key, self.hint) or slot_of(self.key, elements(self.hint))

    @property
    def body(self) -> str:
        """What the value is for, what it may be, and its default, in a few lines."""
        if self._section:
            allowed = f"a section with the keys {', '.join(value.key.rpartition('.')[2] for value in self.below())}"
        elif self._slot:
            plain = [
                in_words(each) for each in union_members(self.hint) if not slot_of("", each) and each is not Tensor
            ]
            names = ", ".join(name for name, _ in self._slot.choices())
            allowed = f"{', or '.join([*plain, str(self._slot)])}{f', such as {names}' if names else ''}"
        else:
            allowed = in_words(self.hint)
        shows = self.default is None or isinstance(self.default, str | int | float | tuple | list)
        default = f"; {shown(content_of(self.default))} by default" if shows else ""
        lines = (self.text, f"{allowed[0].upper()}{allowed[1:]}{default}.")
        return "\n".join(
            textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="  ") for line in lines if line
        )


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
        ends = [path for path, _ in leaf_keys(Recipe) if path.rpartition(".")[2] == key]
        found = [value for path in ends for value in _find(path)]
    if not found:
        parent, _, name = key.rpartition(".")
        known = [each.key for value in (_find(parent) if parent else [_WHOLE]) for each in value.below()]
        near = difflib.get_close_matches(join_key(parent, name), known, n=1)
        hint = f"did you mean {near[0]}?" if near else "give a key as optim.lr, or the last part of one, as lr."
        raise UserError(f"There is no key {key}: {hint}")
    owners: dict[tuple[str, str], list[str]] = {}
    for value in found:
        owners.setdefault((value.key, value.body), []).append(value.owner)
    parts = []
    for (path, body), names in owners.items():
        of = f" of {', '.join(dict.fromkeys(names))}" if any(names) else ""
        parts.append(f"{path}{of}\n{body}")
    return "\n".join(parts)


_WHOLE = _Value("", "", Recipe, MISSING, "")


def _find(key: str) -> list[_Value]:
    found = [_WHOLE]
    for name in key.split("."):
        found = [each for value in found for each in value.below() if each.key.rpartition(".")[2] == name]
    return found
