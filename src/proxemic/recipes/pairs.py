"""Makes the distances, reducers and regularisers inside the pair losses of pytorch-metric-learning (PML).

PML does not annotate its arguments, so that the parser leaves them as they are written.
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.recipes.places import PACKAGE
from proxemic.recipes.writing import remember

with optional_dependency("train"):
    from jsonargparse import Namespace


def make_inside(config: Namespace) -> Namespace:
    """A copy of a recipe's configuration in which the classes inside a loss of PML and its miner are made."""
    made = config.clone()
    outright = str(made.get("loss.class_path", "")).startswith(PACKAGE)
    for key in ("loss",) if outright else ("loss.loss", "loss.miner"):  # those of a `PairwiseLoss`
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
    try:  # that it is a class of theirs is checked when the recipe is read
        made = resolve_name(path)(**(arguments or {}))
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"{key} is {path}, which cannot be made: {error}.") from error
    remember(made, arguments or {})
    return made
