"""Memory that a loss uses again, so that the system need not hand out fresh pages in every step."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Buffers:
    """Large tensors of a CPU, each used again by the next step unless something else still holds its memory.

    The gradient of the proxies is the largest: an optimiser's ``zero_grad`` gives it up. A gradient that is kept, or a
    graph, keeps its memory, and the next step takes other. On a GPU torch's allocator does all this.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of the shape, with the type and on the device of another, and with any values."""
        numel = math.prod(shape)
        if like.device.type != "cpu" or torch.compiler.is_compiling() or numel * like.itemsize < _LEAST:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        kept = self._kept.get(name)
        if kept is None or (kept.numel(), kept.dtype) != (numel, like.dtype) or _is_held_elsewhere(kept):
            kept = self._kept[name] = torch.empty(numel, dtype=like.dtype)
        return kept.view(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, ()  # a copy has its own


_LEAST = 2**20  # bytes: what is smaller the C library keeps itself


def _is_held_elsewhere(tensor: Tensor) -> bool:
    """Whether another tensor has the same memory."""
    storage = tensor.untyped_storage()
    # One is the tensor's own, one that of the object that asks.
    return torch._C._storage_Use_Count(storage._cdata) > 2
