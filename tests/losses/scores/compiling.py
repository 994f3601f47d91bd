"""Compiles every loss, in a process without type checks, which the compiler cannot read: prints what went wrong."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from losses.test_losses import CASES, gradients, make
from proxemic.losses import ProxyLoss
from proxemic.losses.scores import streaming
from proxemic.losses.scores.compiled import Compiled

Results = tuple[torch.Tensor, ...]
X, Y = torch.linspace(-1, 1, 16 * 32).reshape(16, 32).sin(), torch.arange(16) * 7 % 60
PATHS = ("softmax", "proxy-anchor", "mpa", "mpa-dw", "sub-center", "euclidean", "warped", "curricular-face", "hist")
"""Between them, all that is done with a chunk."""


def loss_of(case: str) -> ProxyLoss:
    """In chunks of 40 and 20 classes."""
    torch.manual_seed(0)
    return make(case, 60, 32, 2, chunk_size=40)


def results(loss: Callable[..., torch.Tensor], proxies: torch.Tensor) -> Results:
    """The value and its gradients."""
    x = X.clone().requires_grad_()
    value = loss(x, Y)
    return value.detach(), *gradients(value, x, proxies)


def whole(case: str) -> tuple[Results, Results]:
    """The loss, without a break of its graph."""
    loss = loss_of(case)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    return results(compiled, loss.proxies), results(loss, loss.proxies)


def by_chunks(case: str) -> tuple[Results, Results]:
    """Only the work on a chunk, which is compiled for one size and then for all, in forward and backward."""
    counter = CompileCounterWithBackend("eager")
    loss = loss_of(case)
    want = results(loss, loss.proxies)
    loss.compile_chunks = True
    forward, backward = Compiled(streaming.Walk.forward_chunk), Compiled(streaming.Walk.backward_chunk)
    with (
        patch.object(torch, "compile", partial(torch.compile, backend=counter)),
        patch.multiple(streaming, _compiled_forward=forward, _compiled_backward=backward),
    ):
        found = [results(loss, loss.proxies) for _ in range(3)][-1]
    assert 0 < counter.frame_count <= 4, f"compiled {counter.frame_count} times"
    return found, want


def with_network() -> tuple[Results, Results]:
    """A network and its loss together."""
    torch.manual_seed(0)
    model, loss = torch.nn.Linear(32, 32), loss_of("proxy-anchor")

    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(model(x), y)

    compiled: Any = torch.compile(both, backend="aot_eager", fullgraph=True)
    return results(compiled, loss.proxies), results(both, loss.proxies)


def without_kernels() -> tuple[Results, Results]:
    """A loss that has kernels of its own, which are not asked for where all is compiled."""
    loss = loss_of("softmax")
    want = results(loss, loss.proxies)
    loss.compile_chunks = "triton"
    return results(torch.compile(loss, backend="eager", fullgraph=True), loss.proxies), want


def really() -> tuple[Results, Results]:
    """By the compiler itself, which makes a program of the processor."""
    loss = loss_of("softmax")
    want = results(loss, loss.proxies)
    loss.compile_chunks = True
    return results(loss, loss.proxies), want


if __name__ == "__main__":
    checks: dict[str, Callable[[], tuple[Results, Results]]] = {
        "network": with_network,
        "without kernels": without_kernels,
        "really": really,
    }
    checks |= {f"{name}, whole": partial(whole, name) for name in CASES}
    checks |= {f"{name}, by chunks": partial(by_chunks, name) for name in PATHS}
    faults = 0
    for name, check in checks.items():
        try:
            torch.testing.assert_close(*check(), rtol=1e-5, atol=1e-7)
        except Exception as error:
            faults += 1
            print(f"{name}: {type(error).__name__} {error}")
        torch._dynamo.reset()
    print(f"{len(checks)} checks, {faults} faults")
    sys.exit(faults > 0)
