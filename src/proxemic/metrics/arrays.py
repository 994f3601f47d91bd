"""Embeddings and labels as users have them: tensors, NumPy arrays, lists."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def take_arrays(*names: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let these arguments of a function also be NumPy arrays or lists of numbers, which become tensors.

    Args:
        names: Of arguments; None and whole numbers stay, and of a mapping the values are converted.

    Raises:
        ValueError: If, when the function is called, one of them holds no numbers or is ragged; it is named.

    >>> @take_arrays("points")
    ... def count(points):
    ...     return points.shape
    >>> count([[1.0, 2.0], [3.0, 4.0]])
    torch.Size([2, 2])
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            given = signature.bind(*args, **kwargs)
            for name in names:
                if name in given.arguments:
                    given.arguments[name] = _converted(name, given.arguments[name])
            return function(*given.args, **given.kwargs)

        return call

    return decorate


def as_tensor(name: str, value: Any) -> Tensor:
    """Share the memory of an array, or copy a list.

    Args:
        name: Of the argument, for the message.
        value: A tensor, which is returned as it is, or a NumPy array or list of numbers.

    Raises:
        ValueError: If it holds no numbers, or is ragged.
    """
    if isinstance(value, Tensor):
        return value
    try:
        # A copy, where torch cannot share the memory: read-only, in another byte order, or with negative steps.
        array = np.require(value, requirements=["C", "W"])
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"{value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(
            f"{name} is a {kind} but must be a tensor, or a NumPy array or nested list of numbers with rows of equal "
            "length"
        ) from error


def as_integers(name: str, values: Tensor, rows: int, per: str = "row") -> Tensor:
    """Labels, numbers of groups or indices, as int64.

    Args:
        name: Of the argument, for the message.
        values: One integer per row.
        rows: How many there must be.
        per: What there is one for, for the message.

    Raises:
        ValueError: If these are not integers, or not as many.
    """
    if values.shape != (rows,):
        raise ValueError(f"{name} has shape {tuple(values.shape)} but must be [{rows}], one per {per}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} has {values.dtype} but must be int64; floats would merge large ids")
    return values.long()


def _converted(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: as_tensor(key, each) for key, each in value.items()}
    return value if value is None or isinstance(value, int) else as_tensor(name, value)
