"""Optimiser steps of only those rows of a parameter that have a gradient.

Torch's optimisers take dense gradients and update every row: momentum and weight decay change also rows without a
gradient. Here an optimiser sees, in place of a parameter with a sparse gradient, a parameter of the gradient's rows
only, with their state; after the step the rows are written back.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

# Their state of a row depends on that row alone and starts from 0 (also SGD's momentum of a row that is first used
# later, which dampening then reduces in its first step too); AdamW is an Adam.
_BY_ROW = (SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, RAdam, RMSprop)

_Tensor = TypeVar("_Tensor", bound=Tensor)


def step_rows(parameter: _Tensor) -> _Tensor:
    """Let optimisers step only the rows of this parameter that its sparse gradient has.

    A step that is interrupted, by Ctrl-C or for lack of memory, leaves everything as it was before. The first call
    registers a hook on the steps of all optimisers, which ignores those without such parameters.
    """
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_before_step)
    marked: Any = parameter
    if not is_stepped_by_rows(parameter):
        marked.stepped_by_rows = True
    for optimizer, replaced in list(_shown.items()):
        if any(shown.parameter is parameter for shown in replaced):
            _restore(optimizer)
    return parameter


def is_stepped_by_rows(parameter: Tensor) -> bool:
    """Whether `step_rows` was called on this parameter, not on one that it is a copy of."""
    return getattr(parameter, "stepped_by_rows", False)


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


@dataclass(frozen=True)
class _Shown:
    """A parameter, and the rows that its optimiser sees in its place."""

    parameter: nn.Parameter
    grad: Tensor
    index: Tensor
    rows: nn.Parameter
    group: list[nn.Parameter]
    place: int


_shown: "WeakKeyDictionary[Optimizer, list[_Shown]]" = WeakKeyDictionary()  # of those that are in a step
_hooked: "WeakSet[Optimizer]" = WeakSet()
_hook: RemovableHandle | None = None


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not any(is_stepped_by_rows(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        return None
    # A closure computes the gradients, and optimisers call it first of all.
    myself, *others = args
    closure: Callable[[], Any] | None = others[0] if others else kwargs.get("closure")
    if closure is None:
        return _show_rows(optimizer)

    def and_show() -> Any:
        value = closure()
        _show_rows(optimizer)
        return value

    return (myself, and_show, *others[1:]), {name: value for name, value in kwargs.items() if name != "closure"}


@torch.no_grad()
def _show_rows(optimizer: Optimizer) -> None:
    if optimizer in _shown:  # the step of a subclass, with hooks of its own, calls that of torch's class
        return
    if optimizer not in _hooked:
        _hooked.add(optimizer)
        optimizer.register_state_dict_pre_hook(_restore)  # type: ignore[arg-type]
        handle = optimizer.register_step_post_hook(_after_step)
        # Before all others, which expect the parameters as they are after the step.
        optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
    _shown[optimizer] = []
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            if is_stepped_by_rows(parameter) and parameter.grad is not None and parameter.grad.is_sparse:
                check_steps_rows(optimizer)
                _show(optimizer, group["params"], place)


def _show(optimizer: Optimizer, group: list[nn.Parameter], place: int) -> None:
    parameter = group[place]
    grad = parameter.grad
    assert grad is not None
    sorted_grad = coalesced(grad)
    index = sorted_grad.indices()[0]
    rows = step_rows(nn.Parameter(parameter.index_select(0, index)))
    rows.grad = sorted_grad.values()
    state = {
        name: value.index_select(0, index) if _is_like(value, parameter) else deepcopy(value)
        for name, value in optimizer.state[parameter].items()
    }
    _shown[optimizer].append(_Shown(parameter, grad, index, rows, group, place))
    optimizer.state[rows] = state
    parameter.grad = None
    group[place] = rows


def coalesced(grad: Tensor) -> Tensor:
    """A sparse gradient, its rows ascending and distinct; its own memory where they are so already.

    Autograd drops the mark of a coalesced gradient. To look, for which a GPU is waited for, takes much less time than
    to sort again.
    """
    index = grad._indices()
    if grad.is_coalesced() or not bool((index[0, 1:] > index[0, :-1]).all()):
        return grad.coalesce()
    return torch.sparse_coo_tensor(index, grad._values(), grad.shape, is_coalesced=True, check_invariants=False)


@torch.no_grad()
def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for shown, row_state in _restore(optimizer):
        parameter, state = shown.parameter, optimizer.state[shown.parameter]
        for name, value in row_state.items():
            if _is_like(value, shown.rows):
                if name not in state:  # created in this step, and 0 for the other rows
                    state[name] = torch.zeros_like(parameter, dtype=value.dtype)
                state[name].index_copy_(0, shown.index, value)
            else:
                state[name] = value
        parameter.index_copy_(0, shown.index, shown.rows)
        parameter.grad = shown.grad


def _restore(optimizer: Optimizer) -> list[tuple[_Shown, dict[str, Any]]]:
    """End a step, also an interrupted one; return the rows that the optimiser saw, with their state."""
    replaced = _shown.pop(optimizer, [])
    for shown in replaced:
        shown.group[shown.place] = shown.parameter
    return [(shown, optimizer.state.pop(shown.rows, {})) for shown in replaced]


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
