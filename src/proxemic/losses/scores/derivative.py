"""Derivatives of functions inside a chunk, outside the graph of autograd."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[[Tensor], tuple[Tensor, ...]]


def with_backward(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Backward]:
    """Return the value of a function, and what turns a gradient of the value, once, into those of the inputs.

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


def first_order(backward: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate the backward of a function whose gradients cannot be differentiated again, so that this is an error.

    `torch.autograd.function.once_differentiable` goes unnoticed by ``torch.autograd.grad(…, inputs)``, which then gives
    a part of the second derivative.
    """

    @wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            made = backward(ctx, *grads)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return made
        return tuple(each if each is None else _FirstOrder.apply(each, *ctx.saved_tensors) for each in made)

    return wrapper


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, *sources: Tensor | None) -> Tensor:  # type: ignore[override] # noqa: ARG004
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError(
            "the gradient of a loss that walks over its classes in chunks cannot be differentiated again: take a loss "
            "that torch's autograd computes, such as cross_entropy of class_logits"
        )
