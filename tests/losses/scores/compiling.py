"""Compiles every loss, in a process without type checks, which the compiler cannot read: prints what went wrong."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from losses.test_losses import CASES, gradients, make
from proxemic.losses import ProxyLoss

Results = tuple[torch.Tensor, ...]
X, Y = torch.linspace(-1, 1, 16 * 32).reshape(16, 32).sin(), torch.arange(16) * 7 % 60


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


def with_network() -> tuple[Results, Results]:
    """A network and its loss together."""
    torch.manual_seed(0)
    model, loss = torch.nn.Linear(32, 32), loss_of("proxy-anchor")

    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(model(x), y)

    compiled: Any = torch.compile(both, backend="aot_eager", fullgraph=True)
    return results(compiled, loss.proxies), results(both, loss.proxies)


def in_half_precision(case: str, chunk: int | None) -> tuple[Results, Results]:
    """The loss in automatic mixed precision, which its products must leave in the compiled backward, too."""
    torch.manual_seed(0)
    loss = make(case, 60, 32, 2, chunk_size=chunk)
    loss_alone = results(loss, loss.proxies)
    loss.compile(backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        return results(loss, loss.proxies), loss_alone


if __name__ == "__main__":
    checks: dict[str, Callable[[], tuple[Results, Results]]] = {"network": with_network}
    for case in ("soft-triple", "mpa"):
        checks |= {f"{case} in half precision, {size}": partial(in_half_precision, case, size) for size in (None, 40)}
    checks |= {name: partial(whole, name) for name in CASES}
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
