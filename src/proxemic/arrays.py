"""Convert tensors, NumPy arrays, lists and texts of users to tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from proxemic.lazy import Tensor, is_tensor, torch


def as_tensor(name: str, value: Any) -> Tensor:
    """Convert to a tensor: return a tensor unchanged, share the memory of an array, or copy a list of numbers.

    >>> as_tensor("rows", np.eye(2)[::-1][:1])
    tensor([[0., 1.]], dtype=torch.float64)
    """
    if is_tensor(value):
        return value
    try:
        # A copy if torch cannot share the memory, because it is read-only, strided or in another byte order.
        array = np.require(value, requirements=["C", "W"])
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # NumPy calls an axis of length 1 contiguous whatever its stride, which torch may refuse.
        if any(step < 0 or step % array.itemsize for step in array.strides):
            array = array.copy()
        return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"{value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(
            f"{name} is a {kind} but must be a tensor, or a NumPy array or nested list of numbers with rows of equal "
            "length"
        ) from error


def number_texts(texts: Sequence[str | None]) -> tuple[Int64[Tensor, " rows"], tuple[str, ...]]:
    """Replace each text by its index in sorted order, None by -1; return the indices and the distinct texts.

    >>> number_texts(["owl", None, "jay"])
    (tensor([ 1, -1,  0]), ('jay', 'owl'))
    """
    known = tuple(sorted({text for text in texts if text is not None}))
    number = {text: place for place, text in enumerate(known)}
    return torch.tensor([-1 if text is None else number[text] for text in texts], dtype=torch.int64), known
