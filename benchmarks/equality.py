"""Compare the loss and the gradients of W processes with one process: the worst relative error of every loss.

    uv run python benchmarks/equality.py
    uv run python benchmarks/equality.py --processes 2 4 --json

Every process embeds its part of a batch by a linear network under DistributedDataParallel, and computes a loss with
replicated, sharded or sampled proxies. A step accumulates two batches of different, uneven sizes. One process does the
same with the joined batches. The processes have different numbers of classes, and the last of four has none. "Weighed"
stands for sample weights, and "one by one" for a function of the values per sample, whose mean over the processes is
trained. An error is the largest difference divided by the largest value: of the loss and its moving averages, of the
gradient of the network, and of the gradient of the proxies (all parameters of the loss).
"""

import contextlib
import copy
import importlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from measure import command, print_header, print_row
from proxemic import losses as L
from proxemic.distributed.class_sharding import part_of

FEATURES, DIM = 6, 7
BATCHES = (13, 6)
_RULE = L.DynamicMargin(0.4, 0.02)
_REGULAR = (L.MeanProxyNorm(0.5), L.CenterRegularizer(0.3))
LOSSES: list[tuple[str, type[L.ProxyLoss], dict[str, Any]]] = [
    ("", L.NormalizedSoftmaxLoss, {}),
    (" + regularisers", L.NormalizedSoftmaxLoss, {"regularizers": _REGULAR}),
    ("", L.SphereFaceLoss, {}),
    (", smoothed", L.CosFaceLoss, {"label_smoothing": 0.2}),
    ("", L.ArcFaceLoss, {}),
    (", max pooling", L.ArcFaceLoss, {"pooling": L.MaxPooling()}),
    (", margins, one by one", L.ArcFaceLoss, {"margin": _RULE}),
    ("", L.MagFaceLoss, {"norm_range": (0.5, 4.0)}),
    (", weighed", L.AdaFaceLoss, {"momentum": 0.9}),
    (", weighed, one by one", L.CurricularFaceLoss, {"momentum": 0.5}),
    ("", L.ElasticFaceLoss, {"deviation": 0.2}),
    (", cosine, plus", L.ElasticFaceLoss, {"form": "cos", "plus": True, "deviation": 0.2}),
    ("", L.ProxyNCALoss, {}),
    ("", L.ProxyNCAPlusPlusLoss, {}),
    ("", L.ProxyAnchorLoss, {}),
    ("", L.SoftTripleLoss, {}),
    ("", L.MultiProxyAnchorLoss, {}),
    (", margins", L.MultiProxyAnchorLoss, {"margin": _RULE}),
    ("", L.DataWiseMultiProxyAnchorLoss, {}),
    (", margins, weighed", L.DataWiseMultiProxyAnchorLoss, {"margin": _RULE}),
    ("", L.AllPairMultiProxyAnchorLoss, {}),
    ("", L.EuclideanSoftmaxLoss, {}),
    ("", L.WarpedSoftmaxLoss, {"alpha": 3.0, "k1": 0.6, "k2": 1.5, "delta_scale": 1.2}),
    (", alpha 0, k1 1", L.WarpedSoftmaxLoss, {"alpha": 0.0, "k1": 1.0, "k2": 1.5}),
    (", t and t^1.5", L.WarpedSoftmaxLoss, {"f1": torch.positive, "f2": L.Power(1.5)}),
    ("", L.HISTLoss, {"hidden": 5, "regularizers": _REGULAR}),
    (", weighed, one by one", L.HISTLoss, {"hidden": 5, "regularizers": _REGULAR}),
]

# A log-sum-exp over all classes with regularisers, scores pooled, a moving average, sums over the batch, and a graph.
GATHER = [
    *("NormalizedSoftmaxLoss + regularisers", "SoftTripleLoss", "CurricularFaceLoss, weighed, one by one"),
    *("MultiProxyAnchorLoss, margins", "HISTLoss"),
]


def cases() -> dict[str, tuple[list[str], Callable[..., Any]]]:
    """Return layouts and factory by name of every loss, dense with one proxy and chunked with three, and of PML."""
    from pytorch_metric_learning import losses as pml
    from pytorch_metric_learning import miners

    found: dict[str, tuple[list[str], Callable[..., Any]]] = {}
    for note, kind, keywords in LOSSES:
        name, sharded = f"{kind.__name__}{note}", [] if kind is L.HISTLoss else ["sharded"]
        make = partial(kind, embedding_size=DIM, **keywords)
        found[f"{name}, K=1"] = ["replicated", *sharded], partial(make, proxies_per_class=1)
        found[f"{name}, K=3, in chunks"] = [*sharded, "sampled"], partial(make, proxies_per_class=3, chunk_size=2)
    contrastive = {"loss": pml.ContrastiveLoss(), "miner": None}
    multi = {"loss": pml.MultiSimilarityLoss(), "miner": miners.MultiSimilarityMiner()}
    for name, keywords in {
        "Contrastive": contrastive,
        "MultiSimilarity": multi,
        "Contrastive, memory": {**contrastive, "memory_size": 16},
    }.items():
        found[f"PairwiseLoss({name})"] = ["replicated"], partial(L.PairwiseLoss, embedding_size=DIM, **keywords)
    return found


def choose_rows(few: bool) -> list[tuple[str, str]]:
    """Return names and layouts: all, or one layout of each loss, in turn, but all of those that gather differently."""
    rows = [(name, layout) for name, (layouts, _) in cases().items() for layout in layouts]
    chosen: list[tuple[str, str]] = []
    kinds = groupby(rows, lambda row: row[0].partition(", K=")[0])
    for number, (kind, group) in enumerate(kinds):
        layouts = list(group)
        chosen += layouts if kind in GATHER or not few else [layouts[number % len(layouts)]]
    return chosen


def scalar(name: str, loss: nn.Module, x: Tensor, y: Tensor, share: int = 1) -> Tensor:
    """Return the trained value: the loss, or this process's share of a function of the values per sample."""
    keywords = {"weights": x.detach().square().sum(1)} if "weighed" in name else {}
    if "one by one" not in name:
        return loss(x, y, **keywords)
    return (loss(x, y, reduction="none", **keywords) * x.detach()[:, 0]).sum() / share


def compare(
    parallel: DistributedDataParallel, name: str, make: Callable[..., Any], layout: str, classes: int
) -> dict[str, float]:
    """Run a step on all processes, and return the errors of this process."""
    rank, world = dist.get_rank(), dist.get_world_size()
    network = parallel.module
    network.zero_grad()
    torch.manual_seed(0)
    loss = make(classes, **({"sample_rate": 0.3} if layout == "sampled" else {}))
    if isinstance(loss, L.ProxyLoss):
        loss.count_classes(torch.arange(1, classes + 1))
    if isinstance(loss, L.HISTLoss):
        loss.double()  # the gradient of its bias before the batch norm is small beside float32's rounding of the others
    alone, loss_alone = copy.deepcopy(network), copy.deepcopy(loss)
    options: dict[str, Any] = {"sharded": True} if layout == "sharded" else {}
    loss.distribute(**options)
    values, values_alone = [], []
    for number, size in enumerate(BATCHES):
        x, y = torch.randn(size, FEATURES), torch.randint(classes, (size,))
        cuts = [size * part // world for part in range(world)] + [size]
        cuts[-2] = size if world > 2 else cuts[-2]  # nothing for the last of many processes
        mine, last = slice(*cuts[rank : rank + 2]), number == len(BATCHES) - 1
        with contextlib.nullcontext() if last else parallel.no_sync():
            torch.manual_seed(number + 100 * rank)  # what a loss draws is what the first process draws
            values.append(scalar(name, loss, parallel(x[mine]), y[mine]))
            (values[-1] / len(BATCHES)).backward()
        torch.manual_seed(number)
        values_alone.append(scalar(name, loss_alone, alone(x), y, world))
        (values_alone[-1] / len(BATCHES)).backward()
    if "one by one" in name:
        for value in values:
            dist.all_reduce(value.detach_().div_(world))
    proxies = _gradients(loss_alone)
    own = part_of(classes, rank, world) if layout == "sharded" else slice(None)
    averages, averages_alone = ([*one.buffers()] if isinstance(one, L.ProxyLoss) else [] for one in (loss, loss_alone))
    return {
        "value": _worst([torch.stack(values), *averages], [torch.stack(values_alone), *averages_alone]),
        "network": _worst(_gradients(network), _gradients(alone)),
        "proxies": _worst(_gradients(loss), [gradient[own] for gradient in proxies], proxies),
    }


def _gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.to_dense() for parameter in module.parameters() if parameter.grad is not None]


def _worst(found: list[Tensor], expected: list[Tensor], scales: list[Tensor] | None = None) -> float:
    worst = 0.0
    for one, other, scale in zip(found, expected, scales or expected, strict=True):
        assert one.shape == other.shape, (one.shape, other.shape)
        if one.numel():
            error = float((one - other).detach().abs().max() / scale.detach().abs().max())
            worst = max(worst, math.inf if math.isnan(error) else error)  # max() would lose a nan
    return worst


def work(rank: int, world: int, rows: list[tuple[str, str]], folder: str) -> None:
    """Compare on one process; the first process writes the worst errors."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world)
    parallel = DistributedDataParallel(nn.Linear(FEATURES, DIM))
    makers, classes = cases(), 9 if world < 4 else 5
    found = {
        f"{name} | {layout}": compare(parallel, name, makers[name][1], layout, 40 if layout == "sampled" else classes)
        for name, layout in rows
    }
    worst: list[Any] = [None] * world
    dist.all_gather_object(worst, found)
    if rank == 0:
        joined = {row: {key: max(one[row][key] for one in worst) for key in found[row]} for row in found}
        Path(folder, f"{world}.json").write_text(json.dumps(joined))
    del parallel  # torch 2.9 may hang where its reducer is the last that holds the group
    dist.destroy_process_group()


def main(*, processes: Sequence[int] = (1, 2, 4), few: bool = False, json_: bool = False) -> None:
    """Print the worst errors over batches, classes and processes, by loss and layout: of all, or of `choose_rows`."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Import before the processes fork, so that they need not.
    rows = choose_rows(few)
    importlib.import_module("torch._dynamo")
    with tempfile.TemporaryDirectory() as folder:
        for world in processes:
            mp.start_processes(work, (world, rows, folder), world, start_method="fork")
        table = {world: json.loads(Path(folder, f"{world}.json").read_text()) for world in processes}
    if json_:
        print(json.dumps(table))
        return
    print_header("value, network, proxies", *(f"{world} processes" for world in table))
    for row in next(iter(table.values())):
        print_row(row, *("  ".join(f"{error:.0e}" for error in found[row].values()) for found in table.values()))
    print("worst:", max(error for found in table.values() for row in found.values() for error in row.values()))


if __name__ == "__main__":
    command(main)
