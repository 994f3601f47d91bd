"""Optimiser steps of only those rows of a parameter that have a gradient.

Torch's optimisers take dense gradients and step every row: momentum moves, and weight decay shrinks, also rows that a
step has not looked at, at the cost of all. Here an optimiser sees, in place of a parameter with a sparse gradient, a
parameter of the rows of the gradient only, with their state; after the step the rows are written back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

# Their state of a row depends on that row alone and starts from 0 (also SGD's momentum of a row that comes later, which
# dampening then reduces in its first step too); AdamW is an Adam.
_BY_ROW = (SGD, Adadelta, Adagrad, Adam, Adamax, NAdam, RAdam, RMSprop)

_Tensor = TypeVar("_Tensor", bound=Tensor)


def step_rows(parameter: _Tensor) -> _Tensor:
    """From now on let optimisers step only the rows that the sparse gradient of this parameter has.

    During a step the parameter in the optimiser's ``param_groups`` is one of these rows. A step that was interrupted,
    by Ctrl-C or for lack of memory, leaves everything as it was before. The first call registers a hook on the steps of
    all optimisers, which leaves those without such parameters alone.

    >>> rows = step_rows(nn.Parameter(torch.zeros(3, 1)))
    >>> optimizer = torch.optim.SGD([rows], lr=1.0, momentum=0.5)
    >>> for _ in range(2):
    ...     for row in (0, 2):
    ...         rows.grad = torch.sparse_coo_tensor([[row]], [[1.0]], (3, 1), check_invariants=True)
    ...         optimizer.step()
    >>> rows.flatten().tolist(), optimizer.state[rows]["momentum_buffer"].flatten().tolist()
    ([-2.5, 0.0, -2.5], [1.5, 0.0, 1.5])
    """
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_before_step)
    marked: Any = parameter
    if not is_stepped_by_rows(parameter):
        marked.stepped_by_rows = True
    for optimizer, replaced in list(_shown.items()):
        if any(shown.parameter is parameter for shown in replaced):
            _give_up(optimizer)
    return parameter


def is_stepped_by_rows(parameter: Tensor) -> bool:
    """Whether this parameter was given to `step_rows`; a copy was not."""
    return getattr(parameter, "stepped_by_rows", False)


def check_steps_rows(
    optimizer: Optimizer,
    why: str = "with sample_rate below 1 only some rows are stepped",
    instead: str = "sample_rate 1",
) -> None:
    """Raise `ValueError` unless the optimiser steps every row by itself, so that it can step some of them alone."""
    if not isinstance(optimizer, _BY_ROW):
        raise ValueError(
            f"the optimiser is {type(optimizer).__name__}, but {why}, which "
            f"{', '.join(known.__name__ for known in _BY_ROW)} and AdamW can: take one of them, or {instead}."
        )


@dataclass(frozen=True)
class _Shown:
    """A parameter, and what its optimiser sees in its place."""

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
    # A closure computes the gradients, and optimisers call it first of all; of the arguments, the first is `self`.
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
    if optimizer in _shown:  # of a class whose step calls that of torch's, with hooks of its own
        return
    if optimizer not in _hooked:
        _hooked.add(optimizer)
        optimizer.register_state_dict_pre_hook(_give_up)
        handle = optimizer.register_step_post_hook(_after_step)
        # Before all others, which are to find the parameters as they are after the step.
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
    index, values = _ascending(grad)
    rows = step_rows(nn.Parameter(parameter.index_select(0, index)))
    rows.grad = values
    state = {
        name: value.index_select(0, index) if _is_like(value, parameter) else _copied(value)
        for name, value in optimizer.state[parameter].items()
    }
    _shown[optimizer].append(_Shown(parameter, grad, index, rows, group, place))
    optimizer.state[rows] = state
    parameter.grad = None
    group[place] = rows


def _ascending(grad: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the rows of a sparse gradient, ascending and distinct, and their gradients."""
    # Autograd drops the mark of a coalesced gradient; comparing is much cheaper than sorting again.
    index = grad._indices()[0]
    if bool((index[1:] > index[:-1]).all()):
        return index, grad._values()
    coalesced = grad.coalesce()
    return coalesced.indices()[0], coalesced.values()


@torch.no_grad()
def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for shown, row_state in _hide_rows(optimizer):
        parameter, state = shown.parameter, optimizer.state[shown.parameter]
        for name, value in row_state.items():
            if _is_like(value, shown.rows):
                if name not in state:  # made in this step: of the other rows, what it starts from
                    state[name] = torch.zeros_like(parameter, dtype=value.dtype)
                state[name].index_copy_(0, shown.index, value)
            else:
                state[name] = value
        parameter.index_copy_(0, shown.index, shown.rows)
        parameter.grad = shown.grad


def _give_up(optimizer: Optimizer) -> None:
    """Restore everything to what it was before a step that was interrupted."""
    _hide_rows(optimizer)


def _hide_rows(optimizer: Optimizer) -> list[tuple[_Shown, dict[str, Any]]]:
    """End a step, if there is one; return what was shown, with the state that the optimiser has of it."""
    replaced = _shown.pop(optimizer, [])
    for shown in replaced:
        shown.group[shown.place] = shown.parameter
    return [(shown, optimizer.state.pop(shown.rows, {})) for shown in replaced]


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
