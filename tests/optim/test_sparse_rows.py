"""Optimiser steps of some rows against dense steps, after which the other rows are restored."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)
from torch.utils._python_dispatch import TorchDispatchMode

from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.optim import step_rows

ROWS, SHAPE = 9, (9, 2, 3)
Make = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda it: SGD(it, lr=0.1),
    "SGD, momentum": lambda it: SGD(it, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD, Nesterov, each": lambda it: SGD(it, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True),
    "SGD, dampened, ascending": lambda it: SGD(it, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
    "SGD, fused": lambda it: SGD(it, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adadelta": lambda it: Adadelta(it, lr=0.1, weight_decay=0.1),
    "Adagrad": lambda it: Adagrad(it, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3),
    "Adagrad, fused": lambda it: Adagrad(it, lr=0.1, fused=True),
    "Adam": lambda it: Adam(it, lr=0.1, weight_decay=0.1),
    "Adam, largest": lambda it: Adam(it, lr=0.1, amsgrad=True, foreach=True),
    "Adam, fused": lambda it: Adam(it, lr=0.1, amsgrad=True, fused=True),
    "AdamW": lambda it: AdamW(it, lr=0.1, weight_decay=0.1),
    "AdamW, fused": lambda it: AdamW(it, lr=0.1, weight_decay=0.1, fused=True),
    "Adamax": lambda it: Adamax(it, lr=0.1, weight_decay=0.1),
    "NAdam": lambda it: NAdam(it, lr=0.1, weight_decay=0.1),
    "RAdam": lambda it: RAdam(it, lr=0.1, weight_decay=0.1),
    "RMSprop": lambda it: RMSprop(it, lr=0.1, momentum=0.9, centered=True, weight_decay=0.1),
}
STEPS = ([0, 2, 5], [1, 2], [], [2, 5, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8], [5])
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def sparse(rows: list[int], values: Tensor) -> Tensor:
    index = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(index, values, SHAPE, check_invariants=True)


def tensors(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return the parameter and all state that has its rows."""
    state = optimizer.state[parameter].items()
    of_rows = {key: value.clone() for key, value in state if isinstance(value, Tensor) and value.ndim}
    return {"itself": parameter.detach().clone(), **of_rows}


def naive_step(optimizer: Optimizer, parameter: nn.Parameter, rows: list[int], values: Tensor) -> None:
    """Make a dense step, then restore the unused rows; new state is 0 there."""
    before = tensors(optimizer, parameter)
    parameter.grad = torch.zeros(SHAPE).index_copy(0, torch.tensor(rows, dtype=torch.int64), values)
    optimizer.step()
    unused = [row for row in range(ROWS) if row not in rows]
    with torch.no_grad():
        parameter[unused] = before["itself"][unused]
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor) and value.ndim:
                value[unused] = before[key][unused] if key in before else 0


def compare(make: Make, steps: Any, seed: int = 0) -> None:
    torch.manual_seed(seed)
    ours = nn.Parameter(torch.randn(SHAPE))
    naive = nn.Parameter(ours.detach().clone())
    optimizer, dense = step_rows(make([ours])), make([naive])
    for rows in steps:
        before = tensors(optimizer, ours)
        values = torch.randn(len(rows), *SHAPE[1:])
        ours.grad = sparse(rows, values)
        optimizer.step()
        naive_step(dense, naive, rows, values)
        after = tensors(optimizer, ours)
        assert after.keys() == tensors(dense, naive).keys()
        for key, want in tensors(dense, naive).items():
            torch.testing.assert_close(after[key], want, rtol=1e-6, atol=1e-7)
            unused = [row for row in range(ROWS) if row not in rows]
            start = before[key][unused] if key in before else torch.zeros_like(want[unused])
            assert torch.equal(after[key][unused], start)
        assert torch.equal(ours.grad.to_dense(), sparse(rows, values).to_dense())
        numbers = {key: value for key, value in optimizer.state[ours].items() if key not in after}
        wanted = {key: value for key, value in dense.state[naive].items() if key not in after}
        assert numbers == wanted  # the count of steps is of the whole run


@each_optimizer
def test_used_rows_take_a_dense_step_and_others_none(name: str) -> None:
    compare(OPTIMIZERS[name], STEPS)


@each_optimizer
def test_a_step_with_a_dense_gradient_is_torchs_own(name: str) -> None:
    """A batch that contains all classes, between steps of rows."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(SHAPE))
    naive = nn.Parameter(ours.detach().clone())
    optimizer, dense = step_rows(OPTIMIZERS[name]([ours])), OPTIMIZERS[name]([naive])
    for rows in ([1, 2], None, [2, 3]):
        values = torch.randn(ROWS if rows is None else len(rows), *SHAPE[1:])
        ours.grad = values if rows is None else sparse(rows, values)
        optimizer.step()
        naive_step(dense, naive, list(range(ROWS)) if rows is None else rows, values)
    for key, want in tensors(dense, naive).items():
        torch.testing.assert_close(tensors(optimizer, ours)[key], want, rtol=1e-6, atol=1e-7)


def test_gradients_of_several_backward_passes_are_added_up_once() -> None:
    ours, other = nn.Parameter(torch.zeros(SHAPE)), nn.Parameter(torch.zeros(SHAPE))
    first, second = torch.randn(2, 2, 3), torch.randn(2, 2, 3)
    ours.grad = sparse([5, 1], first)
    ours.grad = ours.grad + sparse([1, 7], second)
    assert not ours.grad.is_coalesced()
    other.grad = sparse([1, 5, 7], torch.stack([first[1] + second[0], first[0], second[1]]))
    optimizers = [step_rows(AdamW([value], lr=0.1)) for value in (ours, other)]
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(ours, other, rtol=0, atol=1e-7)


def run_loss(loss: NormalizedSoftmaxLoss, optimizer: Optimizer, steps: range, form: str = "plain") -> list[float]:
    values = []
    for number in steps:
        torch.manual_seed(number)
        x, y = torch.randn(4, 3), torch.randint(50, (4,))

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            optimizer.zero_grad()
            value = loss(x, y)
            value.backward()
            return value.item()

        match form:
            case "plain":
                values.append(closure())
                optimizer.step()
            case "positional":
                values.append(optimizer.step(closure))
            case "keyword":
                values.append(optimizer.step(closure=closure))
    return values


def sampled(**keywords: Any) -> NormalizedSoftmaxLoss:
    torch.manual_seed(0)
    return NormalizedSoftmaxLoss(50, 3, sample_rate=0.1, **keywords)


@pytest.mark.parametrize("form", ["positional", "keyword"])
def test_a_closure_computes_the_gradients_before_the_step(form: str) -> None:
    plain, closed = sampled(), sampled()
    values = [
        run_loss(item, step_rows(SGD(item.parameters(), lr=1.0, momentum=0.9)), range(4), how)
        for item, how in ((plain, "plain"), (closed, form))
    ]
    assert values[0] == values[1]
    assert torch.equal(plain.proxies, closed.proxies)


def interrupt(optimizer: Optimizer, *_: Any) -> None:
    (shown,) = optimizer.param_groups[0]["params"]
    with torch.no_grad():
        for value in (shown, *optimizer.state[shown].values()):  # it has done some of its work
            value += 1
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["plain", "positional"])
@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW"])
def test_a_step_that_is_interrupted_is_as_if_not_begun(name: str, form: str) -> None:
    loss, whole = sampled(), sampled()
    optimizer, other = (step_rows(OPTIMIZERS[name](value.parameters())) for value in (loss, whole))
    for item, steps in ((loss, optimizer), (whole, other)):
        run_loss(item, steps, range(2))
    before = copy.deepcopy(loss.state_dict())
    hook = optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_loss(loss, optimizer, range(2, 3))
    hook.remove()
    assert torch.equal(loss.proxies, before["proxies"])
    run_loss(loss, optimizer, range(3, 5), form)
    run_loss(whole, other, range(3, 5))
    assert torch.equal(loss.proxies, whole.proxies)
    optimizer.register_step_pre_hook(interrupt)
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(KeyboardInterrupt):
        run_loss(loss, optimizer, range(5, 6))
    (kept,), (expected,) = (value["state"].values() for value in (optimizer.state_dict(), state))
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[key], value) for key, value in expected.items() if isinstance(value, Tensor))


@pytest.mark.parametrize("form", ["plain", "positional"])
def test_a_step_that_calls_torchs_own(form: str) -> None:
    """The hooks of such a step run twice."""

    class Ours(AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    loss, whole = sampled(), sampled()
    run_loss(whole, step_rows(AdamW(whole.parameters(), lr=0.1)), range(3))
    run_loss(loss, step_rows(Ours(loss.parameters(), lr=0.1)), range(3), form)
    assert torch.equal(loss.proxies, whole.proxies)


def test_later_hooks_see_the_finished_step() -> None:
    """Hooks that are registered later average the weights and normalise the proxies."""
    loss = sampled()
    averaged = torch.optim.swa_utils.AveragedModel(loss, avg_fn=lambda _, new, __: new)
    optimizer = step_rows(SGD(loss.parameters(), lr=1.0))

    def normalize(*_: Any) -> None:
        with torch.no_grad():
            loss.proxies.copy_(nn.functional.normalize(loss.proxies, dim=2))
        averaged.update_parameters(loss)

    optimizer.register_step_post_hook(normalize)
    run_loss(loss, optimizer, range(3))
    torch.testing.assert_close(loss.proxies.norm(dim=2), torch.ones(50, 1))
    assert all(map(torch.equal, averaged.module.parameters(), loss.parameters()))


@pytest.mark.parametrize("foreach", [False, True])
def test_groups_and_dense_parameters_are_stepped_beside_it(foreach: bool) -> None:
    torch.manual_seed(0)
    starts = [torch.randn(SHAPE), torch.randn(SHAPE), torch.randn(4)]
    together = [nn.Parameter(start.clone()) for start in starts]
    alone = [nn.Parameter(start.clone()) for start in starts]
    options = {"momentum": 0.9, "weight_decay": 0.1, "foreach": foreach}
    groups = [{"params": [together[0], together[2]], "lr": 0.1}, {"params": [together[1]], "lr": 3.0}]
    first = step_rows(SGD(groups, **options))  # type: ignore[arg-type]
    separate = [step_rows(SGD([item], lr=lr, **options)) for item, lr in zip(alone, (0.1, 3.0, 0.1), strict=True)]  # type: ignore[arg-type]
    for rows in ([0, 4], [4, 5], [8]):
        grads = [sparse(rows, torch.randn(len(rows), 2, 3)), sparse([1], torch.randn(1, 2, 3)), torch.randn(4)]
        for parameters in (together, alone):
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad.clone()
        for optimizer in (first, *separate):
            optimizer.step()
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW", "Adagrad"])
def test_a_resumed_run_continues_alike(name: str) -> None:
    whole, loss = sampled(), sampled()
    optimizer, first = (step_rows(OPTIMIZERS[name](value.parameters())) for value in (whole, loss))
    run_loss(whole, optimizer, range(6))
    run_loss(loss, first, range(3))
    states = copy.deepcopy((loss.state_dict(), first.state_dict()))
    resumed = sampled()
    second = step_rows(OPTIMIZERS[name](resumed.parameters()))
    resumed.load_state_dict(states[0])
    second.load_state_dict(states[1])
    run_loss(resumed, second, range(3, 6))
    assert torch.equal(resumed.proxies, whole.proxies)
    for key, value in tensors(second, resumed.proxies).items():
        assert torch.equal(value, tensors(optimizer, whole.proxies)[key])


@pytest.mark.parametrize("make", [Rprop, ASGD, LBFGS, torch.optim.SparseAdam, torch.optim.Adafactor])
def test_an_optimizer_whose_state_is_not_of_rows_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=f"the optimiser is {make.__name__}, but") as error:
        step_rows(make(sampled().parameters()))
    assert "AdamW can: take one of them, or sample_rate 1." in str(error.value)


@pytest.mark.parametrize("make", [LBFGS, AdamW])
def test_without_it_gradients_are_dense_and_any_optimizer_steps_them(make: Any) -> None:
    loss = sampled()
    run_loss(loss, make(loss.parameters(), lr=0.1), range(2), "positional")
    assert loss.proxies.grad is not None
    assert not loss.proxies.grad.is_sparse
    assert int(loss.proxies.grad.flatten(1).any(1).sum()) == 9  # of 4 samples, and ⌈0.1 · 46⌉ others


def test_constructing_a_loss_changes_nothing_global() -> None:
    hooks = [getattr(sys.modules[Optimizer.__module__], f"_global_optimizer_{when}_hooks") for when in ("pre", "post")]
    before = [*map(len, hooks)]
    run_loss(loss := sampled(), AdamW(loss.parameters()), range(2))
    assert [*map(len, hooks)] == before


class Whole(TorchDispatchMode):
    """Records the operations that read or write a dense tensor with a given number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.found = rows, set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        touched = [*args, *(result if isinstance(result, tuple | list) else [result])]
        dense = [item for item in touched if isinstance(item, Tensor) and item.layout == torch.strided]
        if any(item.shape[:1] == (self.rows,) for item in dense):
            self.found.add(func.overloadpacket.__name__)
        return result


@each_optimizer
def test_a_step_reads_and_writes_only_the_used_rows(name: str) -> None:
    """After the first step, which creates the state, nothing grows with the classes."""
    ours = nn.Parameter(torch.randn(SHAPE))
    optimizer = step_rows(OPTIMIZERS[name]([ours]))
    with Whole(ROWS) as whole:
        for _ in range(2):
            whole.found.clear()
            ours.grad = sparse([0, 2], torch.randn(2, *SHAPE[1:]))
            optimizer.step()
    assert whole.found <= {"index_select", "index_copy_"}


@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW"])
def test_a_step_allocates_nothing_per_class_except_the_draw(name: str) -> None:
    loss = NormalizedSoftmaxLoss(500, 3, sample_rate=0.1)
    optimizer = step_rows(OPTIMIZERS[name](loss.parameters()))
    run_loss(loss, optimizer, range(1))
    with Whole(500) as whole:
        run_loss(loss, optimizer, range(1))
    assert whole.found == {"index_select", "index_copy_", "rand", "scatter_reduce_", "topk"}
