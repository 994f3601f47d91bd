"""Derivatives that are computed inside a chunk, outside autograd's graph, or written by hand."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from proxemic.precision import without_autocast

Backward = Callable[[Tensor], tuple[Tensor, ...]]


def with_backward(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Backward]:
    """Compute a function; return its value, and a function that turns the value's gradient into the inputs' gradients.

    Call the returned function only once. An elementwise function may bring its own ``derivative``, which returns a new
    tensor.

    >>> value, backward = with_backward(torch.square, torch.tensor(3.0))
    >>> value, *backward(torch.tensor(1.0))
    (tensor(9.), tensor(6.))
    """
    if (derivative := getattr(function, "derivative", None)) is not None:
        return function(*inputs), lambda grad: (derivative(*inputs).mul_(grad),)
    if torch.compiler.is_compiling():  # the compiler traces torch.func but not torch.autograd.grad
        value, backward, *_ = torch.func.vjp(function, *inputs)
        return value, backward
    with torch.enable_grad():
        leaves = [input_.detach().requires_grad_() for input_ in inputs]
        value = function(*leaves)
    return value.detach(), lambda grad: torch.autograd.grad(value, leaves, grad)


def first_order(backward: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate the backward of a function so that a second derivative raises an error instead of being wrong.

    With `torch.autograd.function.once_differentiable`, ``torch.autograd.grad(…, inputs)`` would silently return a part
    of the second derivative.
    """

    @wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            input_grads = backward(ctx, *grads)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return input_grads
        return tuple(grad if grad is None else _FirstOrder.apply(grad, *ctx.saved_tensors) for grad in input_grads)

    return wrapper


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, *sources: Tensor | None) -> Tensor:  # type: ignore[override] # noqa: ARG004
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError(
            "the gradient of a loss that computes its classes in chunks cannot be differentiated again: take a loss "
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
    """Give a function of tensors a first derivative with few operations; the second comes from its definition.

    The backward runs outside autocast, in which `torch.compile` would otherwise trace its products.

    Args:
        definition: The function in ordinary autograd. Its first arguments are tensors, the others constants.
        forward: Returns the same value or values, and a tuple of tensors to keep for the backward.
        backward: Returns the gradients of the tensors from ``(grad, needed, tensors, kept, *constants)``. ``grad`` is a
            tuple if there are several values; ``needed`` says for each tensor whether its gradient is used.
        tensors: Number of tensors among the arguments.
        materialize: Whether an unused value has a gradient of zeros rather than ``None``.

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
                computed = iter(torch.autograd.grad(values, wanted, given, create_graph=True))
                input_grads = [next(computed) if need else None for need in needed]
            else:
                first, *others = grads
                with without_autocast(saved[0].device.type):
                    input_grads = backward(grads if others else first, needed, inputs, kept, *ctx.constants)
            return (*input_grads, *(None,) * len(ctx.constants))

    return ByHand.apply
