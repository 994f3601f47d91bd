"""Measure how the cost of a loss grows with batch M, classes C and proxies per class P (MPA paper, table 2).

    python benchmarks/complexity.py            # a minute on two cores
    python benchmarks/complexity.py --smoke    # small sizes, seconds

One size is doubled while the others stay the same, and the exponent is the slope of a line through the logarithms. It
counts the operations of forward and backward: multiply-adds of matrix products, and elements that other operations
write. Brackets hold the exponent of the median seconds. The paper counts M over all training images; here, M is the
batch. The centre term of SoftTriple and MPA, which costs C·P² for any M, is left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning import losses as pml
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from measure import command, medians, print_header, print_row
from proxemic import losses

DIM = 64
LOSSES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "Contrastive": ("O(M²)", pml.ContrastiveLoss, {}),
    "Triplet": ("O(M³)", pml.TripletMarginLoss, {}),
    "MultiSimilarity": ("O(M³)", pml.MultiSimilarityLoss, {}),
    "ProxyNCA": ("O(MC)", losses.ProxyNCALoss, {}),
    "ProxyAnchor": ("O(MC)", losses.ProxyAnchorLoss, {}),
    "SoftTriple": ("O(MCP²)", losses.SoftTripleLoss, {"center_weight": 0.0}),
    "MPA": ("O(MCP²)", losses.MultiProxyAnchorLoss, {"center_weight": 0.0}),
    "MPA-DW": ("O(MCP²)", losses.DataWiseMultiProxyAnchorLoss, {"center_weight": 0.0}),
    "MPA-AP": ("O(MCP²)", losses.AllPairMultiProxyAnchorLoss, {"center_weight": 0.0}),
}
"""The paper's complexity, the loss and its keywords."""
BASE, SMOKE = {"M": 256, "C": 512, "P": 4}, {"M": 16, "C": 32, "P": 2}
"""The smallest sizes."""
TRIPLETS = 32  # the smallest batch of a loss of M³


class Counted(TorchDispatchMode):
    """Count the operations in the block."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        product = func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm")
        inner = args[-2].shape[-1] if product else 1
        for written in result if isinstance(result, tuple | list) else (result,):
            if isinstance(written, Tensor) and not func.is_view:  # a view writes nothing
                self.operations += written.numel() * inner
        return result


def step(name: str, sizes: dict[str, int]) -> Callable[[], None]:
    """Return a forward and backward on a random batch; pair losses get four classes, so that triplets are M³."""
    torch.manual_seed(0)
    x, y = torch.randn(sizes["M"], DIM, requires_grad=True), torch.arange(sizes["M"])
    _, kind, keywords = LOSSES[name]
    if issubclass(kind, losses.ProxyLoss):
        loss, classes = kind(sizes["C"], DIM, proxies_per_class=sizes["P"], **keywords), sizes["C"]  # type: ignore[call-arg]
    else:
        loss, classes = kind(), 4
    return lambda: loss(x, y % classes).backward()


def count(call: Callable[[], None]) -> int:
    """Count the operations of a call."""
    with Counted() as counted:
        call()
    return counted.operations


def grow(name: str, key: str, base: dict[str, int], doublings: int, rounds: int) -> str:
    """Return the exponents of a loss in one size."""
    start = min(base[key], TRIPLETS) if name == "Triplet" else base[key]
    values = [start * 2**power for power in range(doublings + 1)]
    calls = {str(value): step(name, base | {key: value}) for value in values}
    costs = [*map(count, calls.values())], [*medians(calls, rounds).values()]
    counted, seconds = (np.polyfit(np.log(values), np.log(cost), 1)[0] for cost in costs)
    return f"{counted:.2f} ({seconds:.2f})"


def main(*, losses: Sequence[str] = tuple(LOSSES), rounds: int = 5, smoke: bool = False) -> None:
    """Print a row for each loss."""
    base, doublings, rounds = (SMOKE, 2, 1) if smoke else (BASE, 3, rounds)
    sizes = ", ".join(f"{key}={value}" for key, value in base.items())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; D={DIM}, {sizes}, doubled {doublings} times")
    print_header("loss", "paper", *(f"{key}: counted (time)" for key in base))
    for name in losses:
        paper = LOSSES[name][0]
        print_row(name, paper, *(grow(name, key, base, doublings, rounds) if key in paper else "–" for key in base))


if __name__ == "__main__":
    command(main)
