"""Derivatives of functions inside a chunk, outside the graph of autograd."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from proxemic.precision import without_autocast

Backward = Callable[[Tensor], tuple[Tensor, ...]]


def with_backward(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Backward]:
    """Return a function's value, and a function, to be called once, that turns its gradient into those of the inputs.

    >>> value, backward = with_backward(torch.square, torch.tensor(3.0))
    >>> value, *backward(torch.tensor(1.0))
    (tensor(9.), tensor(6.))
    """
    if torch.compiler.is_compiling():  # which traces transforms of functions, and not the other form
        value, backward, *_ = torch.func.vjp(function, *inputs)
        return value, backward
    with torch.enable_grad():
        leaves = [input_.detach().requires_grad_() for input_ in inputs]
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
        return tuple(item if item is None else _FirstOrder.apply(item, *ctx.saved_tensors) for item in made)

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


def by_hand(
    definition: Callable[..., Any],
    forward: Callable[..., tuple[Any, tuple[Tensor, ...]]],
    backward: Callable[..., Sequence[Tensor | None]],
    tensors: int = 1,
    *,
    materialize: bool = True,
) -> Callable[..., Any]:
    """Give a function of tensors a first derivative of few operations; the second is that of its definition.

    Products in the backward leave autocast, in which `torch.compile` would otherwise trace them.

    Args:
        definition: The function by ordinary autograd. Its first arguments are tensors, the others constants.
        forward: The same value or values, and tensors to keep for the backward.
        backward: The gradients of the tensors, from ``(grad, needed, tensors, kept, *constants)``. ``grad`` is a tuple
            if there are several values, and ``needed`` says of each tensor whether its gradient is used.
        tensors: The number of tensors.
        materialize: Whether the gradient of a value that is not used is zero, or else ``None``.

    >>> cube = by_hand(
    ...     lambda x: x**3, lambda x: (x**3, ()), lambda grad, needed, tensors, kept: [grad * 3 * tensors[0].square()]
    ... )
    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> (slope,) = torch.autograd.grad(cube(x), x, create_graph=True)
    >>> slope.item(), torch.autograd.grad(slope, x)[0].item()
    (12.0, 12.0)
    """

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            value, kept = forward(*arguments)
            ctx.set_materialize_grads(materialize)
            ctx.save_for_backward(*arguments[:tensors], *kept)
            ctx.constants = arguments[tensors:]
            return value

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            saved, needed = ctx.saved_tensors, ctx.needs_input_grad[:tensors]
            inputs, kept = saved[:tensors], saved[tensors:]
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                wanted = [input_ for input_, need in zip(inputs, needed, strict=True) if need]
                values = definition(*inputs, *ctx.constants)
                pairs = zip(values if len(grads) > 1 else [values], grads, strict=True)
                values, given = zip(*((value, grad) for value, grad in pairs if grad is not None), strict=True)
                found = iter(torch.autograd.grad(values, wanted, given, create_graph=True))
                made = [next(found) if need else None for need in needed]
            else:
                first, *others = grads
                with without_autocast(saved[0].device.type):
                    made = backward(grads if others else first, needed, inputs, kept, *ctx.constants)
            return (*made, *(None,) * len(ctx.constants))

    return ByHand.apply
