"""Turns the objects of a `Recipe` into the content of a recipe file: the inverse of reading one."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import partial
from itertools import accumulate
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from proxemic.arguments import constructor_parameters
from proxemic.errors import UserError
from proxemic.recipes.places import arms, elements, field_types, is_section, join_key, parameters, place_of

_MADE_WITH = WeakIdKeyDictionary()
"""The arguments of the objects that were made from recipe files, which most of them do not keep."""


def remember(made: object, arguments: Mapping[str, Any]) -> None:
    """Keep the arguments that an object was made with for `as_content`."""
    if not _tells_its_fields(made) and hasattr(type(made), "__weakref__"):
        _MADE_WITH[made] = dict(arguments)


def as_content(value: Any, annotation: Any = Any, key: str = "") -> Any:
    """What stands for a `Recipe`, or a part of it with a type and a key, in a recipe file.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> as_content(partial(ProxyAnchorLoss, alpha=16))
    {'class_path': 'proxemic.losses.ProxyAnchorLoss', 'init_args': {'alpha': 16}}
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Path | timedelta):
        return str(value)
    if isinstance(value, Mapping):
        return {name: as_content(each, elements(annotation), join_key(key, name)) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [as_content(each, elements(annotation), key) for each in value]
    if inspect.isclass(value) or (
        inspect.isroutine(value) and not isinstance(value, partial)
    ):  # a partial is, from 3.14 on
        return _import_path(value, key)
    if _tells_its_fields(value):
        types = field_types(type(value))
        content = {
            field.name: as_content(getattr(value, field.name), types[field.name], join_key(key, field.name))
            for field in fields(value)
            if field.init
        }
        return content if any(is_section(arm) for arm in arms(annotation)) else _class_content(value, content, key)
    place = place_of(key, annotation)
    if place is not None and (place.filled or place.filled_names) and not isinstance(value, partial):
        made = type(value).__name__
        raise UserError(
            f"{key} is an object of the class {made}, but the training makes it: give the class, or "
            f"functools.partial({made}, …) with its other arguments."
        )
    if isinstance(value, partial):
        if value.args or not inspect.isclass(value.func):
            raise UserError(
                f"{key} is {value}, but a recipe can hold a functools.partial of a class only, with keyword arguments."
            )
        made, arguments = value.func, value.keywords
    else:
        made, arguments = type(value), _MADE_WITH.get(value)
    if arguments is None:
        arguments = _arguments(value, key)
    types = {name: parameter.annotation for name, parameter in parameters(made).items()}
    content = {name: as_content(each, types.get(name, Any), join_key(key, name)) for name, each in arguments.items()}
    return _class_content(made, content, key)


def _class_content(made: Any, arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    made = made if inspect.isclass(made) else type(made)
    taken = inspect.signature(made.__init__).parameters.values()
    known = constructor_parameters(made)
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in taken):
        known = arguments  # a name that it does not know is refused by the check of the recipe
    content: dict[str, Any] = {"class_path": _import_path(made, key)}
    if init_args := {name: value for name, value in arguments.items() if name in known}:
        content["init_args"] = init_args
    if others := {name: value for name, value in arguments.items() if name not in known}:
        content["dict_kwargs"] = others
    return content


def _tells_its_fields(value: Any) -> bool:
    """Whether it is an instance of a dataclass whose fields are the arguments of its constructor."""
    names = {field.name for field in fields(value) if field.init} if is_dataclass(value) else None
    return names is not None and names == set(constructor_parameters(type(value)))


def _arguments(value: object, key: str) -> dict[str, Any]:
    """The arguments of an object's constructor, if it keeps them under their names, as scikit-learn's estimators do."""
    made = type(value)
    known = constructor_parameters(made)
    kept: dict[str, Any] = {}
    for name in known:
        if not hasattr(value, name):
            raise _cannot_be_read(key, made, name)
        kept[name] = getattr(value, name)
    arguments = {name: each for name, each in kept.items() if each is not known[name][1].default}
    # What its bases take, a class may give them itself; and an attribute may be another value than its argument.
    for chosen in (arguments, {name: each for name, each in arguments.items() if known[name][0] is made}):
        try:
            again = made(**chosen)
        except TypeError:
            continue
        changed = [name for name, each in kept.items() if not _same(getattr(again, name, None), each)]
        if not changed:
            return chosen
        raise _cannot_be_read(key, made, changed[0])
    raise _cannot_be_read(key, made, next(iter(arguments), ""))


def _same(one: Any, other: Any) -> bool:
    if one is other or (inspect.ismethod(one) and inspect.ismethod(other) and one.__func__ is other.__func__):
        return True
    try:
        return as_content(one) == as_content(other)
    except UserError:
        return False


def _cannot_be_read(key: str, made: type, name: str) -> UserError:
    return UserError(
        f"{key} is an object of the class {made.__name__}, which does not keep its argument {name} under that name, so "
        "that the recipe cannot be written: describe it to proxemic.recipes.load by its class_path and init_args."
    )


def _import_path(thing: Any, key: str) -> str:
    module, name = getattr(thing, "__module__", None) or "torch", thing.__name__
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not thing:
        where = "the program that runs" if module == "__main__" else "another function or class"
        raise UserError(
            f"{key} is {name}, which is defined in {where}, so that a recipe cannot name it: define it at the top of "
            "a module of its own, and import it from there."
        )
    packages = accumulate(module.split("."), "{}.{}".format)
    # The shortest path, as in `proxemic.losses`, stays valid when a class moves to another module.
    return next(f"{each}.{name}" for each in packages if getattr(sys.modules[each], name, None) is thing)
