"""Count the operations that a step of a loss starts on a GPU, on tensors without data: no GPU is needed.

    python benchmarks/operations.py
    python benchmarks/operations.py --cases cub sop
    python benchmarks/operations.py --graphs    # of torch.compile, with breaks and errors under autocast, on a CPU

An operation is a call of ATen that computes; views, sizes and allocations do not count. On a GPU, each operation is at
least one kernel, which takes some microseconds. The last column counts the operations of one chunk of classes.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import proxemic.losses as ours
from measure import command, print_header, print_row
from proxemic.losses.scores import plan

CASES: dict[str, tuple[str, int, int, int, int]] = {
    "million": ("ArcFaceLoss", 1024, 512, 1_000_000, 1),
    "million-anchor": ("ProxyAnchorLoss", 1024, 512, 1_000_000, 1),
    "sop": ("SoftTripleLoss", 180, 512, 11_318, 10),
    "faces": ("NormalizedSoftmaxLoss", 512, 512, 85_742, 1),
    "cub": ("SoftTripleLoss", 180, 512, 100, 10),
}
"""Loss, B, D, C, K of the cases that benchmarks/gpu.py measures."""

MEMORY = 80 * 10**9  # bytes of the GPU

FREE = set(
    """alias as_strided detach device diagonal empty empty_like empty_strided expand lift_fresh new_empty
    new_empty_strided permute promote_types _reshape_alias scalar_tensor select slice split squeeze t transpose unbind
    _unsafe_view unsqueeze view""".split()  # noqa: SIM905
)
"""Operations that compute nothing."""


class Counted(TorchDispatchMode):
    """Count operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name not in FREE:
            self.names[name] += 1
        return function(*args, **kwargs or {})


def count(name: str, batch: int, dim: int, classes: int, proxies: int, chunk: int | None = None) -> Counter[str]:
    """Count the operations of a forward and a backward by name."""
    with FakeTensorMode(), ExitStack() as patches:
        # Autograd cannot wait for a device without data, so only our own choices are made as on a GPU.
        patches.enter_context(patch.object(torch.Tensor, "is_cuda", True))
        patches.enter_context(patch.object(plan, "gpu_memory", lambda _: MEMORY))
        patches.enter_context(patch("proxemic.losses.proxy_loss.watch_proxies"))  # it reads the first gradients
        loss = getattr(ours, name)(classes, dim, proxies_per_class=proxies, chunk_size=chunk, init=lambda _: None)
        x, y = torch.randn(batch, dim, requires_grad=True), torch.randint(classes, (batch,))
        patches.enter_context(patch("proxemic.losses.proxy_loss.check_labels"))  # it reads them on a CPU
        with Counted() as counted:
            loss(x, y).backward()
    return counted.names


def count_chunk(name: str, proxies: int) -> int:
    """Count the operations of one more chunk."""
    one, two = (count(name, 32, 64, classes, proxies, 500).total() for classes in (1000, 1500))
    return two - one


def count_graphs(name: str, chunk: int | None = None, **options: Any) -> tuple[int, int, float]:
    """Count graphs and breaks of a compiled loss over five sizes of batches; return also its error under autocast."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    loss, counter = (
        getattr(ours, name)(60, 32, chunk_size=chunk, **options).eval(),
        CompileCounterWithBackend("aot_eager"),
    )
    x, y = torch.randn(16, 32), torch.arange(16) * 7 % 60

    def results(size: int) -> tuple[Tensor, ...]:
        torch.manual_seed(1)  # the same classes are sampled
        leaf = x[:size].clone().requires_grad_()
        value = loss(leaf, y[:size])
        return value.detach(), *torch.autograd.grad(value, (leaf, loss.proxies))

    sizes, error = (16, 12, 9, 14, 5), 0.0
    expected = [results(size) for size in sizes]
    counters.clear()
    loss.compile(backend=counter)
    with torch.autocast("cpu", torch.bfloat16):
        for size, wanted in zip(sizes, expected, strict=True):
            for got, want in zip(results(size), wanted, strict=True):
                error = max(error, float((got - want).norm() / want.norm()))
    return counter.frame_count, sum(counters["graph_break"].values()), error


COMPILED: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    **{
        name: (name, None, {})
        for name in ours.__all__
        if name.endswith("Loss") and name not in ("PairwiseLoss", "ProxyLoss", "MatryoshkaLoss")
    },
    "WarpedSoftmaxLoss": ("WarpedSoftmaxLoss", None, {"alpha": 5.0, "k1": 0.9, "k2": 1.1}),
    "softmax, sampled": ("NormalizedSoftmaxLoss", None, {"sample_rate": 0.2}),
    "softmax, 9 chunks": ("NormalizedSoftmaxLoss", 7, {}),
    "Proxy-Anchor, 9 chunks": ("ProxyAnchorLoss", 7, {}),
    "SoftTriple, 9 chunks": ("SoftTripleLoss", 7, {}),
}
"""Names of losses, sizes of chunks and options whose graphs are counted."""


def main(
    *, cases: Sequence[str] = tuple(CASES), names: bool = False, graphs: bool = False, smoke: bool = False
) -> None:
    """Print a row for each case; with ``names``, also the number of each operation; with ``graphs``, graphs instead."""
    if graphs:
        print_header("loss", "graphs, five sizes of batches", "breaks", "error under autocast")
        for title, (name, chunk, options) in [*COMPILED.items()][-4 if smoke else 0 :]:
            frames, breaks, error = count_graphs(name, chunk, **options)
            print_row(title, frames, breaks, f"{error:.0e}")
        return
    print_header("loss", "B, D, C, K", "a step", "a chunk")
    for case in cases:
        loss, *sizes = CASES[case]
        counted, shown = count(loss, *sizes), ", ".join(map(str, sizes))
        print_row(loss.removesuffix("Loss"), shown, counted.total(), count_chunk(loss, sizes[-1]))
        if names:
            print(", ".join(f"{name} {number}" for name, number in counted.most_common()))


if __name__ == "__main__":
    command(main)
