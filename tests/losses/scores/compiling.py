"""Compile losses in a process without type checks, which the compiler cannot trace, and print failures.

The graphs are what is tested: they run as they are, without the code that a backend would generate.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from losses.test_losses import gradients, make
from proxemic.losses import ArcFaceLoss, DynamicMargin, ProxyLoss
from proxemic.optim import step_rows

# One of each kind of scores: pooled in each way, with averages, summed over the batch, warped, of a graph.
KINDS = (
    "softmax sub-center mean-pooled curricular-face proxy-anchor soft-triple mpa-dw mpa-ap warped warped-functions hist"
)
Results = tuple[torch.Tensor, ...]
X, Y = torch.linspace(-1, 1, 16 * 32).reshape(16, 32).sin(), torch.arange(16) * 7 % 60


def results(loss: Callable[..., torch.Tensor], proxies: torch.Tensor, batch: int = 16) -> Results:
    """Compute the value and its gradients."""
    torch.manual_seed(1)  # the same classes are sampled
    x = X[:batch].clone().requires_grad_()
    value = loss(x, Y[:batch])
    return value.detach(), *(gradient.to_dense() for gradient in gradients(value, x, proxies))


def of_classes() -> ProxyLoss:
    """Make a loss with loaded margins that were computed from counts."""
    counted, loss = (ArcFaceLoss(60, 32, margin=DynamicMargin()) for _ in range(2))
    counted.count_classes([1 + c for c in range(60)])
    loss.load_state_dict(counted.state_dict())
    return loss


def sparse() -> ProxyLoss:
    """Make a loss with a sparse gradient of the proxies."""
    loss = make("softmax", 60, 32, sample_rate=0.2)
    step_rows(torch.optim.SGD(loss.parameters(), lr=0.1))
    return loss


def compiled(create: Callable[[], ProxyLoss], *, method: bool = False, half: bool = False, most: int = 2) -> None:
    """Compare a loss with its compiled form: one graph without breaks, compiled at most twice for five batch sizes."""
    torch.manual_seed(0)
    loss, counter = create(), CompileCounterWithBackend("eager")
    sizes = (16, 12, 9, 14, 5) if most else (16,)
    expected = [results(loss, loss.proxies, size) for size in sizes]
    options: dict[str, Any] = {"backend": counter, "fullgraph": True}
    function = torch.compile(loss, **options)
    if method:
        loss.compile(**options)
        function = loss
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        for size, want in zip(sizes, expected, strict=True):
            torch.testing.assert_close(results(function, loss.proxies, size), want, rtol=1e-4, atol=1e-6)
    assert not most or counter.frame_count <= most, f"{counter.frame_count} graphs"


if __name__ == "__main__":
    checks: dict[str, Callable[[], None]] = {
        name: partial(compiled, partial(make, name, 60, 32, 2), most=0) for name in KINDS.split()
    }
    checks |= {
        "sampled": partial(compiled, partial(make, "softmax", 60, 32, 2, sample_rate=0.2)),
        "sparse": partial(compiled, sparse, method=True),
        "margins of classes": partial(compiled, of_classes),
        # A forward and a backward, each for a first size and for any: nine chunks, of which the last is shorter.
        "chunks": partial(compiled, partial(make, "softmax", 60, 32, chunk_size=7), method=True, half=True, most=4),
        "a single pass": partial(compiled, partial(make, "proxy-anchor", 60, 32, chunk_size=7), method=True, most=4),
    }
    faults = 0
    for name, check in checks.items():
        try:
            check()
        except Exception as error:
            faults += 1
            print(f"{name}: {type(error).__name__} {error}")
        torch._dynamo.reset()
    print(f"{len(checks)} checks, {faults} faults")
    sys.exit(faults > 0)
