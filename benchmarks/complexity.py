"""How the cost of a loss grows with the batch M, the classes C and the proxies a class P: MPA paper, table 2.

    python benchmarks/complexity.py            # a minute on two cores
    python benchmarks/complexity.py --smoke    # small sizes, seconds

A size is doubled while the others stay, and the exponent is the slope of a line through the logarithms. Operations are
counted, forward and backward: multiply-adds of matrix products, and the elements that all others write. In brackets the
exponent of the median seconds. The paper counts M over all training images; a step has the M of its batch. The centre
term of SoftTriple and MPA, C·P² whatever M is, is left out.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from measure import medians
from proxemic import losses

DIM = 64
PAIRS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "Contrastive": ("O(M²)", lambda: pml.ContrastiveLoss()),
    "Triplet": ("O(M³)", lambda: pml.TripletMarginLoss()),
    "MultiSimilarity": ("O(M³)", lambda: pml.MultiSimilarityLoss()),
}
PROXIES: dict[str, tuple[str, type[losses.ProxyLoss], dict[str, Any]]] = {
    "ProxyNCA": ("O(MC)", losses.ProxyNCALoss, {}),
    "ProxyAnchor": ("O(MC)", losses.ProxyAnchorLoss, {}),
    "SoftTriple": ("O(MCP²)", losses.SoftTripleLoss, {"center_weight": 0.0}),
    "MPA": ("O(MCP²)", losses.MultiProxyAnchorLoss, {"center_weight": 0.0}),
    "MPA-DW": ("O(MCP²)", losses.DataWiseMultiProxyAnchorLoss, {"center_weight": 0.0}),
    "MPA-AP": ("O(MCP²)", losses.AllPairMultiProxyAnchorLoss, {"center_weight": 0.0}),
}
# From where each size is doubled, and the others; how often.
BASE, DOUBLINGS = {"M": 256, "C": 512, "P": 4}, 3
SMOKE = {"M": 16, "C": 32, "P": 2}
TRIPLETS = 32  # of the batch from which a loss of M³ begins


class Counted(TorchDispatchMode):
    """The operations made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        product = func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm")
        inner = args[-2].shape[-1] if product else 1
        for each in result if isinstance(result, tuple | list) else (result,):
            # A view writes nothing.
            if isinstance(each, Tensor) and not func.is_view:
                self.operations += each.numel() * inner
        return result


def step(name: str, sizes: dict[str, int]) -> Callable[[], None]:
    """Forward and backward of a loss on a random batch; of pair losses with four classes, so that triplets are M³."""
    torch.manual_seed(0)
    batch = sizes["M"]
    x, y = torch.randn(batch, DIM, requires_grad=True), torch.arange(batch)
    if name in PAIRS:
        pairs = PAIRS[name][1]()
        return lambda: pairs(x, y % 4).backward()
    _, make, more = PROXIES[name]
    loss = make(sizes["C"], DIM, proxies_per_class=sizes["P"], **more)
    return lambda: loss(x, y % sizes["C"]).backward()


def count(call: Callable[[], None]) -> int:
    """Its operations."""
    with Counted() as counted:
        call()
    return counted.operations


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = ([math.log(each) for each in values] for values in (sizes, costs))
    middle, level = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return top / sum((a - middle) ** 2 for a in x)


def grow(name: str, key: str, base: dict[str, int], doublings: int, rounds: int) -> dict[str, float]:
    """The exponents of one size of one loss."""
    start = min(base[key], TRIPLETS) if name == "Triplet" else base[key]
    values = [start * 2**power for power in range(doublings + 1)]
    calls = {str(value): step(name, base | {key: value}) for value in values}
    counted = [count(call) for call in calls.values()]
    seconds = medians(calls, rounds)
    return {"counted": exponent(values, counted), "time": exponent(values, [seconds[str(each)] for each in values])}


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes and few rounds: does it run?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--losses", nargs="+", choices=[*PAIRS, *PROXIES], default=[*PAIRS, *PROXIES])
    args = parser.parse_args(argv)
    base, doublings, rounds = (SMOKE, 2, 1) if args.smoke else (BASE, DOUBLINGS, args.rounds)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; D={DIM}, from M={base['M']}, C={base['C']}, ",
        end="",
    )
    print(f"P={base['P']}, doubled {doublings} times; exponents: counted (time)")
    print(f"{'loss':16} {'paper':8} {'M':>14} {'C':>14} {'P':>14}")
    for name in args.losses:
        paper = PAIRS[name][0] if name in PAIRS else PROXIES[name][0]
        cells = []
        for key in "MCP":
            if (name in PAIRS and key != "M") or (key == "P" and "P" not in paper):
                cells.append("–")
                continue
            found = grow(name, key, base, doublings, rounds)
            cells.append(f"{found['counted']:.2f} ({found['time']:.2f})")
        print(f"{name:16} {paper:8} " + " ".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
