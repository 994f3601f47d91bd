"""Count the operations that a step of a loss starts on a GPU, on tensors without data: no GPU is needed.

    python benchmarks/operations.py
    python benchmarks/operations.py --cases cub sop

An operation is a call of ATen that computes; views, sizes and allocations do not count. On a GPU, each operation is at
least one kernel, which takes some microseconds. The last column counts the operations of one chunk of classes.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
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


def main(*, cases: Sequence[str] = tuple(CASES), names: bool = False) -> None:
    """Print a row for each case; with ``names``, also the number of each operation."""
    print_header("loss", "B, D, C, K", "a step", "a chunk")
    for case in cases:
        loss, *sizes = CASES[case]
        counted, shown = count(loss, *sizes), ", ".join(map(str, sizes))
        print_row(loss.removesuffix("Loss"), shown, counted.total(), count_chunk(loss, sizes[-1]))
        if names:
            print(", ".join(f"{name} {number}" for name, number in counted.most_common()))


if __name__ == "__main__":
    command(main)
