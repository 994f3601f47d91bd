"""Tell which classes and functions the keys of a recipe may name, by type hints or by a table in this module."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor, nn
from torch.distributions import Transform

from proxemic.extras import optional_dependency
from proxemic.losses import MatryoshkaLoss, PairwiseLoss, Power, ProxyLoss
from proxemic.losses.user_defined import LossFactory, ProxyLossFactory, takes_batches
from proxemic.recipes.hints import FREE, PAIR_PACKAGE, UntypedArgument, is_container, union_members
from proxemic.recipes.importing import is_own
from proxemic.training.callbacks.callback import is_of_lightning
from proxemic.training.parts.loggers import Logger

_ELEMENTWISE = "abs asinh atan exp expm1 log log1p positive relu sigmoid sinh sqrt square tanh"
_DISTANCES = (nn.Module, Power, Transform, *(f"torch.{name}" for name in _ELEMENTWISE.split()))

_LISTED: dict[str, tuple[type | str, ...]] = {
    "loss.f1": _DISTANCES,
    "loss.f2": _DISTANCES,
    "loss.init": ("proxemic.losses.initialization", "torch.nn.init"),
    "loss.loss": ("pytorch_metric_learning.losses.BaseMetricLossFunction",),
    "loss.miner": ("pytorch_metric_learning.miners.BaseMiner",),
}
"""For keys whose hints say too little: base classes (or their import paths), functions, modules of functions.

For all others the hint decides: ``ImageSource`` and ``Callable[..., Optimizer]`` take classes derived from these, any
other ``Callable`` takes functions of the user's own.
"""

_ALSO_MODULES = {f"augment.{name}" for name in ("before_crop", "after_crop", "on_tensor")}
"""Keys that take modules of torch, too, which their hints do not name: a search imports no torch."""

_MODULES = {
    "data": "proxemic.data",
    "loss": "proxemic.losses",
    "loss.init": "proxemic.losses.initialization",
    "loss.loss": f"{PAIR_PACKAGE}losses",
    "loss.margin": "proxemic.losses",
    "loss.miner": f"{PAIR_PACKAGE}miners",
    "loss.pooling": "proxemic.losses",
    "loss.proxy_loss": "proxemic.losses",
    "loss.regularizers": "proxemic.losses",
    "optim.optimizer": "torch.optim",
    "optim.schedule": "torch.optim.lr_scheduler",
    "training.callbacks": "proxemic.training",
    "training.loggers": "proxemic.training",
}
"""For each key, the module whose names need no import path and are suggested for a misspelt one."""

_PLAIN = (*FREE, str, int, float, bool, complex, bytes, Path, timedelta, type(None), Tensor)  # no recipe makes a tensor


@dataclass(frozen=True)
class Slot:
    """What a key may name: subclasses of ``bases``, ``functions`` or modules' functions, or the user's ``own`` objects.

    Unless ``called`` is false, the recipe gives the arguments of the class, except for the first ``filled`` ones and
    those in ``filled_names``. Import paths must begin with ``package``. With ``loss``, the class must be a loss.
    Objects of ``module`` may be named without an import path.
    """

    bases: tuple[type, ...] = ()
    functions: tuple[str, ...] = ()
    own: bool = False
    filled: int = 0
    filled_names: frozenset[str] = frozenset()
    called: bool = True
    package: str = ""
    loss: bool = False
    module: str = ""

    @property
    def makes_later(self) -> bool:
        """Whether the training makes the object, with arguments that are not in the recipe."""
        return bool(self.filled or self.filled_names)

    def takes(self, thing: object) -> bool:
        """Return whether the key may name this class or function."""
        if inspect.isclass(thing):
            fits = issubclass(thing, self.bases) or (self.own and is_own(thing.__module__) and "__call__" in dir(thing))
            fits = fits and not inspect.isabstract(thing) and not is_of_lightning(thing.__module__)
            return fits and (not self.loss or takes_batches(thing))
        if not inspect.isroutine(thing):
            return False
        module, name = getattr(thing, "__module__", None) or "torch", thing.__name__
        return module in self.functions or f"{module}.{name}" in self.functions or (self.own and is_own(module))

    def choices(self) -> Iterator[tuple[str, Any]]:
        """Yield the public names of ``module`` that may be chosen, each with its class or function."""
        module = import_module(self.module) if self.module else None
        for name in dict.fromkeys([*vars(module), *dir(module)] if module else ()):  # some are imported when first used
            thing = getattr(module, name)
            is_loss = inspect.isclass(thing) and issubclass(thing, ProxyLoss | PairwiseLoss | MatryoshkaLoss)
            if not name.startswith("_") and self.takes(thing) and (self.loss or not is_loss):
                yield name, thing

    def __str__(self) -> str:
        bases = [base for base in self.bases if base is not Logger]
        kinds = ["nn.Module" if base is nn.Module else base.__name__ for base in bases]
        wanted = [f"a class derived from {' or '.join(kinds)}"] if kinds else []
        wanted += ["a class with log_metrics(metrics, step)"] if Logger in self.bases else []
        wanted = [f"{item} whose forward takes (embeddings, labels)" if self.loss else item for item in wanted]
        wanted += [f"a function of {', '.join(self.functions)}"] if self.functions else []
        wanted += ["a function of your own"] if self.own else []
        return ", or ".join(wanted)


@cache
def slot_of(key: str, hint: Any) -> Slot | None:
    """Return what a key with this hint may name; None if it may not name classes or functions."""
    key = key.removeprefix("second_phase.").replace("loss.proxy_loss.", "loss.")
    module = _MODULES.get(key, "")
    if listed := _LISTED.get(key):
        functions = tuple(item for item in listed if isinstance(item, str) and item.rpartition(".")[2].islower())
        with optional_dependency("pairs"):
            bases = (resolve_name(item) if isinstance(item, str) else item for item in listed if item not in functions)
            return Slot(tuple(bases), functions, own=bool(functions), module=module)
    slots = [slot for member in union_members(hint) if (slot := _slot(member))]
    if not slots:
        return None
    bases = (*_bases(hint), *([nn.Module] if key in _ALSO_MODULES else []))
    return replace(slots[0], bases=bases, own=any(slot.own for slot in slots), module=module)


def _slot(member: Any) -> Slot | None:
    origin = get_origin(member) or member
    if member is UntypedArgument:
        return Slot((nn.Module,), package=PAIR_PACKAGE)
    if origin is Callable:
        *given, result = get_args(member) or (Any,)
        bases = _bases(result)
        filled = len(given[0]) if given and isinstance(given[0], list) else len(given)
        return Slot(bases, filled=filled) if bases else Slot(own=True)
    if origin is type:
        return Slot(get_args(member), called=False)
    if getattr(member, "_is_protocol", False) and "__call__" in vars(member):
        names = frozenset(inspect.signature(member.__call__).parameters) - {"self"}
        bases = _bases(get_type_hints(member.__call__)["return"])
        return Slot(bases, filled_names=names, loss=member in (LossFactory, ProxyLossFactory))
    if not inspect.isclass(origin) or origin in _PLAIN or is_container(origin) or issubclass(origin, Enum):
        return None
    return Slot((origin,))


def _bases(hint: Any) -> tuple[type, ...]:
    return tuple(base for member in union_members(hint) if (slot := _slot(member)) for base in slot.bases)
