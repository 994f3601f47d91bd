"""Optimiser steps of only those rows of a parameter that have a gradient.

Torch's optimisers take dense gradients and update every row: momentum and weight decay also change rows without a
gradient. `step_rows` replaces a parameter with a sparse gradient by a small one during the step, which holds the rows
of the gradient and their state, and writes the rows back afterwards.
"""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop

# Their state of a row depends on that row alone and starts from 0 (so does SGD's momentum of a row that is first used
# later, which dampening then also reduces in its first step); AdamW is a subclass of Adam.
_BY_ROW = (SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, RAdam, RMSprop)

_Optimizer = TypeVar("_Optimizer", bound=Optimizer)


def step_rows(optimizer: _Optimizer) -> _Optimizer:
    """Let an optimiser step only the rows of the classes that a loss with ``sample_rate`` below 1 has sampled.

    The gradients of such a loss are then sparse: time and memory of a step depend on the number of sampled classes, and
    the other rows keep their values and their state. Without this call, gradients are dense and the optimiser steps
    every row, as torch does. During a step, the optimiser's ``param_groups`` hold a parameter of the sampled rows
    instead of the proxies. A step that is interrupted (by Ctrl-C or for lack of memory) changes nothing.

    Args:
        optimizer: A new SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, NAdam, RAdam or RMSprop. Post-step hooks that are
            registered before this call do not see the values after the step.

    Returns:
        The same optimiser.

    Raises:
        ValueError: If the optimiser does not update every row independently.

    >>> from proxemic.losses import NormalizedSoftmaxLoss
    >>> loss = NormalizedSoftmaxLoss(1000, 8, sample_rate=0.1)
    >>> optimizer = step_rows(torch.optim.AdamW(loss.parameters(), lr=0.1))
    >>> loss(torch.randn(4, 8), torch.arange(4)).backward()
    >>> loss.proxies.grad.is_sparse
    True
    """
    check_steps_rows(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.steps_rows = True
    swaps: list[_Swap] = []
    whole_step = optimizer.step
    optimizer.register_step_post_hook(lambda *_: _write_back(optimizer, swaps))

    def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        value = None
        if closure is not None:  # it computes the gradients
            with torch.enable_grad():
                value = closure()
        try:
            _swap_in(optimizer, swaps)
            whole_step()
        finally:
            _swap_out(optimizer, swaps)
        return value

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


def steps_rows(parameter: Tensor) -> bool:
    """Return whether an optimiser of this parameter was passed to `step_rows`, so that its gradient may be sparse."""
    return getattr(parameter, "steps_rows", False)


def check_steps_rows(
    optimizer: Optimizer,
    why: str = "with sample_rate below 1 only some rows are stepped",
    instead: str = "sample_rate 1",
) -> None:
    """Raise `ValueError` unless the optimiser updates every row independently."""
    if not isinstance(optimizer, _BY_ROW):
        raise ValueError(
            f"the optimiser is {type(optimizer).__name__}, but {why}, which "
            f"{', '.join(known.__name__ for known in _BY_ROW)} and AdamW can: take one of them, or {instead}."
        )


def note_sampled_rows(parameter: Tensor, count: int) -> None:
    """Record the number of rows, ascending and distinct, of the latest sparse gradient of a parameter."""
    parameter.sampled_rows = count  # type: ignore[attr-defined]


def coalesced(parameter: nn.Parameter) -> Tensor:
    """Return the sparse gradient of a parameter with ascending, distinct rows, without waiting for a GPU if possible.

    Autograd drops the flag of a coalesced gradient. A gradient with the recorded number of rows is a single one, not a
    sum of several, and so still coalesced.
    """
    grad = parameter.grad
    assert grad is not None
    if grad.is_coalesced() or grad._nnz() != getattr(parameter, "sampled_rows", None):
        return grad.coalesce()
    parts = (grad._indices(), grad._values(), grad.shape)
    return torch.sparse_coo_tensor(*parts, is_coalesced=True, check_invariants=False)


@dataclass(frozen=True)
class _Swap:
    """A parameter, and the rows that replace it during a step."""

    parameter: nn.Parameter
    index: Tensor
    rows: nn.Parameter
    group: list[nn.Parameter]
    place: int


@torch.no_grad()
def _swap_in(optimizer: Optimizer, swaps: list[_Swap]) -> None:
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            if parameter.grad is None or not parameter.grad.is_sparse:
                continue
            grad = coalesced(parameter)
            index = grad.indices()[0]
            rows = nn.Parameter(parameter.index_select(0, index))
            rows.grad = grad.values()
            optimizer.state[rows] = {
                name: value.index_select(0, index) if _is_like(value, parameter) else deepcopy(value)
                for name, value in optimizer.state[parameter].items()
            }
            swaps.append(_Swap(parameter, index, rows, group["params"], place))
            group["params"][place] = rows


@torch.no_grad()
def _write_back(optimizer: Optimizer, swaps: list[_Swap]) -> None:
    for item in swaps:
        state = optimizer.state[item.parameter]
        for name, value in optimizer.state[item.rows].items():
            if _is_like(value, item.rows):
                if name not in state:  # created in this step, and 0 for the other rows
                    state[name] = torch.zeros_like(item.parameter, dtype=value.dtype)
                state[name].index_copy_(0, item.index, value)
            else:
                state[name] = value
        item.parameter.index_copy_(0, item.index, item.rows)
    _swap_out(optimizer, swaps)


def _swap_out(optimizer: Optimizer, swaps: list[_Swap]) -> None:
    for item in swaps:
        item.group[item.place] = item.parameter
        with suppress(KeyError):
            del optimizer.state[item.rows]
    swaps.clear()


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
