"""Which classes and functions the keys of a recipe may name: by the types of the keys, or else by this table."""

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor, nn
from torch.distributions import Transform

from proxemic.arguments import constructor_parameters
from proxemic.extras import optional_dependency
from proxemic.losses import Power
from proxemic.losses.user_defined import MakesLoss, takes_batches
from proxemic.recipes.importing import is_own

PACKAGE = "pytorch_metric_learning."

_ELEMENTWISE = "abs asinh atan exp expm1 log log1p positive relu sigmoid sinh sqrt square tanh"
_DISTANCES = (nn.Module, Power, Transform, *(f"torch.{name}" for name in _ELEMENTWISE.split()))

PLACES: dict[str, tuple[type | str, ...]] = {
    "loss.f1": _DISTANCES,
    "loss.f2": _DISTANCES,
    "loss.init": ("proxemic.losses.initialization", "torch.nn.init"),
    "loss.loss": ("pytorch_metric_learning.losses.BaseMetricLossFunction",),
    "loss.miner": ("pytorch_metric_learning.miners.BaseMiner",),
}
"""By keys whose types say too little: base classes (or their import paths), functions, modules of functions.

For all others the type decides: ``ImageSource`` and ``Callable[..., Optimizer]`` take classes derived from these, any
other ``Callable`` takes functions of the user's own.
"""


class Inside:
    """Stands for the type of an argument inside the losses of pytorch-metric-learning, which does not annotate them."""


_PLAIN = (Any, str, int, float, bool, complex, bytes, Path, timedelta, type(None), object)


@dataclass(frozen=True)
class Place:
    """What a key may name: classes derived from ``bases``, ``functions`` or those of modules, or the user's ``own``.

    Unless ``made`` is false, the recipe gives the arguments of the class, except for the first ``filled`` ones and for
    ``filled_names``. Import paths must begin with ``package``. With ``loss``, the class must be one of losses.
    """

    bases: tuple[type, ...] = ()
    functions: tuple[str, ...] = ()
    own: bool = False
    filled: int = 0
    filled_names: frozenset[str] = frozenset()
    made: bool = True
    package: str = ""
    loss: bool = False

    def takes(self, thing: object) -> bool:
        """Whether the key may name this class or function."""
        if inspect.isclass(thing):
            fits = issubclass(thing, self.bases) or (self.own and is_own(thing.__module__) and "__call__" in dir(thing))
            return fits and not inspect.isabstract(thing) and (not self.loss or takes_batches(thing))
        if not inspect.isroutine(thing):
            return False
        module, name = getattr(thing, "__module__", None) or "torch", thing.__name__
        return module in self.functions or f"{module}.{name}" in self.functions or (self.own and is_own(module))

    def __str__(self) -> str:
        kinds = ["nn.Module" if each is nn.Module else each.__name__ for each in self.bases]
        wanted = [f"a class derived from {' or '.join(kinds)}"] if kinds else []
        wanted = [f"{each} whose forward takes (embeddings, labels)" if self.loss else each for each in wanted]
        wanted += [f"a function of {', '.join(self.functions)}"] if self.functions else []
        wanted += ["a function of your own"] if self.own else []
        return ", or ".join(wanted)


@dataclass(frozen=True)
class Parameter:
    """An argument of a class: its type, or else `inspect.Parameter.empty`, and whether it must be given."""

    annotation: Any
    required: bool


def place_of(key: str, annotation: Any) -> Place | None:
    """What a key with this type may name; None if it names no classes or functions."""
    if listed := PLACES.get(key):
        functions = tuple(each for each in listed if isinstance(each, str) and each.rpartition(".")[2].islower())
        with optional_dependency("pairs"):
            bases = (resolve_name(each) if isinstance(each, str) else each for each in listed if each not in functions)
            return Place(tuple(bases), functions, own=bool(functions))
    places = [place for arm in arms(annotation) if (place := _place(arm))]
    if not places:
        return None
    return replace(places[0], bases=_bases(places), own=any(each.own for each in places))


def arms(annotation: Any) -> list[Any]:
    """The members of a union; any other type alone."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return arms(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [arm for each in get_args(annotation) for arm in arms(each)]
    return [annotation]


def elements(annotation: Any) -> Any:
    """The type of the elements of lists and dicts of this type; `Any` if it is none of them or does not say."""
    inner = [each for arm in arms(annotation) if is_container(get_origin(arm) or arm) for each in get_args(arm)]
    inner = [each for each in inner if each is not Ellipsis]
    return Union[tuple(inner)] if inner else Any  # noqa: UP007 - of as many as there are


def is_text(annotation: Any) -> bool:
    """Whether a text is allowed, and besides it only what YAML reads as a number, true, false or null."""
    scalars = [
        arm in (str, Path, int, float, bool, type(None)) or get_origin(arm) is Literal for arm in arms(annotation)
    ]
    return all(scalars) and not {str, Path}.isdisjoint(arms(annotation))


def is_plain(annotation: Any) -> bool:
    """Whether the type rules out that a text names a class or a function."""
    return all(
        arm in (*_PLAIN, Inside)
        or get_origin(arm) is Literal
        or (inspect.isclass(arm) and issubclass(arm, Enum))
        or (is_container(get_origin(arm) or arm) and all(is_plain(each) or each is Ellipsis for each in get_args(arm)))
        for arm in arms(annotation)
    )


def is_section(annotation: Any) -> bool:
    """Whether it is a dataclass that is a part of recipes, not one of the classes to choose from."""
    return inspect.isclass(annotation) and all(is_dataclass(each) for each in inspect.getmro(annotation)[:-1])


@cache
def field_types(made: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return get_type_hints(made, include_extras=True)


@cache
def parameters(made: type) -> dict[str, Parameter]:
    """The arguments of a class in order, with those that it passes on to its bases by ``**kwargs``."""
    typed: dict[str, Parameter] = {}
    for name, (owner, parameter) in constructor_parameters(made).items():
        annotation = _type(owner, parameter)
        # Of any kind of type, to which | may not apply.
        annotation = Union[annotation, None] if parameter.default is None else annotation  # noqa: UP007
        # A class may itself give its bases what they need.
        typed[name] = Parameter(annotation, owner is made and parameter.default is parameter.empty)
    return typed


def _type(owner: type, parameter: inspect.Parameter) -> Any:
    """The type of an argument; `inspect.Parameter.empty` if it has none, or one that only type checkers import."""
    annotation = parameter.annotation
    if annotation is parameter.empty and owner.__module__.startswith(PACKAGE):
        return Inside
    if annotation is parameter.empty and parameter.default is not parameter.empty:
        kind = type(parameter.default)
        if kind in (bool, float):
            return kind
        return Any if kind in _PLAIN or is_container(kind) else parameter.empty
    if not isinstance(annotation, str):
        return annotation
    names = vars(inspect.getmodule(owner.__init__) or inspect.getmodule(owner))
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, dict(names), include_extras=True)["it"]
    except (NameError, TypeError, AttributeError):
        return inspect.Parameter.empty


def _place(arm: Any) -> Place | None:
    origin = get_origin(arm) or arm
    if arm is Inside:
        return Place((nn.Module,), package=PACKAGE)
    if origin is Callable:
        *given, made = get_args(arm) or (Any,)
        bases = _bases([place for each in arms(made) if (place := _place(each))])
        # As the parser counts: a Callable[..., Made] fills one in.
        filled = len(given[0]) if given and isinstance(given[0], list) else len(given)
        return Place(bases, filled=filled) if bases else Place(own=True)
    if origin is type:
        return Place(get_args(arm), made=False)
    if getattr(arm, "_is_protocol", False) and "__call__" in vars(arm):
        names = frozenset(inspect.signature(arm.__call__).parameters) - {"self"}
        made = get_type_hints(arm.__call__)["return"]
        return Place(
            _bases([place for each in arms(made) if (place := _place(each))]), filled_names=names, loss=arm is MakesLoss
        )
    if (
        not inspect.isclass(origin)
        or origin in (*_PLAIN, Tensor, inspect.Parameter.empty)  # no recipe makes a tensor
        or is_container(origin)
        or issubclass(origin, Enum)
    ):
        return None
    return Place((origin,))


def _bases(places: Iterable[Place]) -> tuple[type, ...]:
    return tuple(base for each in places for base in each.bases)


def is_container(origin: Any) -> bool:
    """Whether it is a list, a dict or the like, and not another class of iterable objects."""
    known = inspect.isclass(origin) and origin.__module__ in ("builtins", "collections", "collections.abc")
    return known and origin not in _PLAIN and issubclass(origin, Iterable)


def join_key(key: str, name: object) -> str:
    """The key of a value below another key, or at the top of a recipe, whose key is empty."""
    return f"{key}.{name}".lstrip(".")
