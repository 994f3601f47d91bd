"""Conversion and checks of embeddings and labels, which may be tensors, NumPy arrays or lists."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.arrays import as_tensor, number_texts

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def take_arrays(*names: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function to convert these arguments, or the values of mappings, from arrays or lists to tensors."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            given = signature.bind(*args, **kwargs)
            texts = {name: given.arguments[name] for name in names if _are_texts(given.arguments.get(name))}
            if texts:  # several arguments, such as labels of queries and gallery, are numbered together
                numbers, _ = number_texts([text for values in texts.values() for text in values])
                given.arguments |= zip(texts, numbers.split([*map(len, texts.values())]), strict=True)
            for name in names:
                if name in given.arguments:
                    given.arguments[name] = _converted(name, given.arguments[name])
            return function(*given.args, **given.kwargs)

        return call

    return decorate


def _are_texts(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind in "UT"
    return isinstance(values, Sequence) and len(values) > 0 and all(isinstance(value, str) for value in values)


def as_integers(name: str, values: Tensor, rows: int, per: str = "sample") -> Tensor:
    """Return one integer per sample as int64; raise `ValueError` if there is not one integer per sample."""
    if values.shape != (rows,):
        raise ValueError(f"{name} has shape {tuple(values.shape)} but must be [{rows}], one per {per}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} has {values.dtype} but must be int64; floats would merge large ids")
    return values.long()


def check_shape(name: str, embeddings: Tensor) -> None:
    """Raise `ValueError` unless embeddings are `[samples, dim]`, both at least 1."""
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"{name} has shape {tuple(embeddings.shape)} but must be [samples, dim], both at least 1")


def check_finite(name: str, values: Float[Tensor, "samples dim"], items: str = "embeddings") -> None:
    """Raise `ValueError` with the number of items that have NaN or infinite values, if there are any."""
    # The extremes of an item are NaN if a coordinate is; computing them needs no memory of the size of the embeddings.
    low, high = values.detach().aminmax(dim=1)
    broken = int((~(low.isfinite() & high.isfinite())).sum())
    if broken:
        raise ValueError(f"{name} has NaN or infinite values in {broken} of {len(values)} {items}; fix or drop them")


def _converted(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: as_tensor(key, item) for key, item in value.items()}
    return value if value is None or isinstance(value, int) else as_tensor(name, value)
