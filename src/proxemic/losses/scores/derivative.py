"""Derivatives of functions inside a chunk, outside the graph of autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

Backward = Callable[[Tensor], tuple[Tensor, ...]]


def with_backward(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Backward]:
    """The value of a function, and what turns a gradient of the value, once, into those of the inputs.

    >>> value, backward = with_backward(torch.square, torch.tensor(3.0))
    >>> value, *backward(torch.tensor(1.0))
    (tensor(9.), tensor(6.))
    """
    if torch.compiler.is_compiling():  # which traces transforms of functions, and not the other form
        value, backward, *_ = torch.func.vjp(function, *inputs)
        return value, backward
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in inputs]
        value = function(*leaves)
    return value.detach(), lambda grad: torch.autograd.grad(value, leaves, grad)
