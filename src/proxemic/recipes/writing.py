"""Turn a recipe, or a value in it, into the content of a file, from which it can be built again."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from proxemic.arguments import constructor_parameters
from proxemic.errors import UserError
from proxemic.recipes.build import LINKS, Described
from proxemic.recipes.hints import arguments_of, elements, field_types, join_key, section_in
from proxemic.recipes.slots import slot_of


def content_of(value: Any, hint: Any = Any, key: str = "") -> Any:
    """Return the content of a recipe file for a `Recipe`, or for a part of one with a hint and a key.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> content_of(partial(ProxyAnchorLoss, alpha=16))
    {'class_path': 'proxemic.losses.ProxyAnchorLoss', 'init_args': {'alpha': 16}}
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {name: content_of(item, elements(hint), join_key(key, name)) for name, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [content_of(item, elements(hint), key) for item in value]
    if inspect.isclass(value) or (inspect.isroutine(value) and not isinstance(value, partial)):
        return import_path(value, key)
    if section_in(hint) and section_in(type(value)):
        hints = field_types(type(value))
        names = [name for name in hints if join_key(key, name) not in LINKS]
        return {name: content_of(getattr(value, name), hints[name], join_key(key, name)) for name in names}
    kind, arguments = _made_with(value, hint, key)
    hints = {name: argument.hint for name, argument in arguments_of(kind).items()}
    content = {
        name: content_of(argument, hints.get(name, Any), join_key(key, name)) for name, argument in arguments.items()
    }
    takes_more = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(kind.__init__).parameters.values()
    )
    parts: dict[str, dict[str, Any]] = {"init_args": {}, "dict_kwargs": {}}
    for name, item in content.items():  # without further keywords, an unknown name is refused as the recipe is built
        parts["dict_kwargs" if takes_more and name not in hints else "init_args"][name] = item
    return {"class_path": import_path(kind, key)} | {name: part for name, part in parts.items() if part}


def _made_with(value: Any, hint: Any, key: str) -> tuple[type, Mapping[str, Any]]:
    """Return the class of an object and the arguments with which it is made."""
    described = getattr(value, "_described", value)
    if isinstance(described, Described):
        return described.kind, described.arguments
    if isinstance(value, partial):
        if value.args or not inspect.isclass(value.func):
            raise UserError(
                f"{key} is {value}, but a recipe only holds a functools.partial of a class, with keyword arguments."
            )
        return value.func, value.keywords
    slot, kind = slot_of(key, hint), type(value)
    if slot is not None and slot.makes_later:
        raise UserError(
            f"{key} is an object of the class {kind.__name__}, but the training makes it: give the class, or "
            f"functools.partial({kind.__name__}, …) with its other arguments."
        )
    if slot is not None and not slot.takes(kind):
        raise UserError(f"{key} is an object of the class {kind.__name__}, but must be {slot}.")
    return kind, _kept(value, key)


def _kept(value: object, key: str) -> dict[str, Any]:
    """Return an object's constructor arguments from its attributes of the same names, as in scikit-learn."""
    kind, known = type(value), constructor_parameters(type(value))
    kept = {name: getattr(value, name) for name in known if hasattr(value, name)}
    if is_dataclass(value) and {field.name for field in fields(value) if field.init} == {*known}:
        return kept
    # Its class may pass some arguments to its bases itself, which then cannot be given again.
    arguments = {
        name: item for name, item in kept.items() if known[name][0] is kind or item is not known[name][1].default
    }
    wrong = next((name for name in known if name not in kept), None)
    if wrong is None:
        try:
            again = kind(**arguments)
            wrong = next((name for name, item in kept.items() if getattr(again, name, None) != item), None)
        except TypeError:
            wrong = next(iter(arguments), "")
    if wrong is not None:
        raise UserError(
            f"{key} is an object of the class {kind.__name__}, which does not keep its argument {wrong} under that "
            "name, so that the recipe cannot be written: describe it to proxemic.recipes.load by its class_path and "
            "init_args."
        )
    return arguments


def import_path(thing: Any, key: str) -> str:
    """Return the shortest import path of a class or function, which stays valid if its module is moved."""
    module, name = getattr(thing, "__module__", None) or "torch", thing.__name__
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not thing:
        where = "the program that runs" if module == "__main__" else "another function or class"
        raise UserError(
            f"{key} is {name}, which is defined in {where}, so that a recipe cannot name it: define it at the top of "
            "a module of its own, and import it from there."
        )
    packages = accumulate(module.split("."), "{}.{}".format)
    return next(f"{package}.{name}" for package in packages if getattr(sys.modules[package], name, None) is thing)
