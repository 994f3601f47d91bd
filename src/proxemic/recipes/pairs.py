"""The distances, reducers and regularisers inside the pair losses of pytorch-metric-learning.

PML does not type its arguments, so that the parser leaves them as they are written: they are made here.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.recipes.places import PACKAGE
from proxemic.recipes.writing import remember

with optional_dependency("train"):
    from jsonargparse import Namespace

_PAIRS = ("loss.loss", "loss.miner")
"""The places inside a `PairwiseLoss`."""


def make_inside(config: Namespace) -> Namespace:
    """A copy of a recipe's configuration in which the classes inside a loss of PML and its miner are made.

    Raises:
        UserError: If one of them is not there or refuses its arguments.
    """
    made = config.clone()
    outright = str(made.get("loss.class_path", "")).startswith(PACKAGE)
    for key in ("loss",) if outright else _PAIRS:
        arguments = made.get(f"{key.replace('.', '.init_args.')}.init_args", None) or Namespace()
        for name, value in arguments.items(branches=True, nested=False):
            arguments[name] = _make(f"{key}.{name}", value)
    return made


def _make(key: str, value: Any) -> Any:
    spec: Any = value.as_dict() if isinstance(value, Namespace) else value
    path = spec.get("class_path") if isinstance(spec, Mapping) else spec
    arguments = spec.get("init_args") if isinstance(spec, Mapping) else None
    if not isinstance(path, str) or not path.startswith(PACKAGE):
        return value
    module, _, name = path.rpartition(".")
    try:  # that it is a class of theirs is checked when the recipe is read
        made = getattr(importlib.import_module(module), name)(**(arguments or {}))
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"{key} is {path}, which cannot be made: {error}.") from error
    remember(made, arguments or {})
    return made
