"""Inspect the arguments of functions, and of classes including those of their bases."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


def constructor_parameters(made: type) -> dict[str, tuple[type, inspect.Parameter]]:
    """Map each parameter of the constructor, including those passed on by ``**kwargs``, to the class declaring it.

    >>> class Base:
    ...     def __init__(self, weight=1.0): ...
    >>> class Derived(Base):
    ...     def __init__(self, scale, **options): ...
    >>> list(constructor_parameters(Derived))
    ['scale', 'weight']
    """
    parameters: dict[str, tuple[type, inspect.Parameter]] = {}
    for base in inspect.getmro(made):
        declared = inspect.signature(base.__init__).parameters
        for name, parameter in [*declared.items()][1:]:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                parameters.setdefault(name, (base, parameter))
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in declared.values()):
            break
    return parameters


def changed_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> set[str]:
    """Return the names of the arguments whose values are not the function's defaults; an empty value counts as None.

    >>> changed_arguments(lambda a=1, b=None, *, c=(): None, {"a": 2, "b": {}, "c": ()})
    {'a'}
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return {name for name, default in defaults.items() if values[name] != default and (values[name] or default)}


def call_with_known(make: Callable[..., Any], **arguments: Any) -> Any:
    """Call a class, a `functools.partial` of a class, or a function with the given arguments that it accepts.

    >>> call_with_known(partial(dict, a=1), b=2), call_with_known(lambda b: b, b=2, c=3)
    ({'a': 1}, 2)
    """
    made = make.func if isinstance(make, partial) else make
    taken = constructor_parameters(made) if isinstance(made, type) else inspect.signature(made).parameters
    return make(**{name: value for name, value in arguments.items() if name in taken})
