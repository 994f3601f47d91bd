"""Whether W processes give the value and the gradients of one: the worst relative error of every loss.

    uv run python benchmarks/equality.py
    uv run python benchmarks/equality.py --processes 2 4 --json

Every process embeds its own part of a batch by a linear network under DistributedDataParallel, and takes one loss, with
replicated, sharded or sampled proxies. One step accumulates two batches of other, uneven sizes. Beside it, one process
does the same with the joined batches. There are as many classes as leave the processes different numbers of them, and
the last of four none. "Weighed" is with sample weights, "one by one" with some function of the values of the samples,
of which the processes' mean is trained. An error is the largest difference over the largest value, of the loss and its
moving averages, of the gradient of the network and of that of the proxies (of all that the loss learns).
"""

import argparse
import contextlib
import copy
import importlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from proxemic import losses as L
from proxemic.distributed.class_sharding import part_of

FEATURES, DIM = 6, 7
BATCHES = (13, 6)
Make = Callable[..., nn.Module]
_RULE = L.DynamicMargin(0.4, 0.02)


def cases() -> dict[str, Make]:
    """Every loss of the package, dense and streamed, and PML's through `PairwiseLoss`."""
    from pytorch_metric_learning import losses as pml
    from pytorch_metric_learning import miners

    warp = {"alpha": 3.0, "k1": 0.6, "k2": 1.5, "delta_scale": 1.2}
    regular = (L.MeanProxyNorm(0.5), L.CenterRegularizer(0.3))
    made: list[tuple[str, Make, dict[str, Any]]] = [
        ("", L.NormalizedSoftmaxLoss, {}),
        (" + regularisers", L.NormalizedSoftmaxLoss, {"regularizers": regular}),
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
        ("", L.WarpedSoftmaxLoss, warp),
        (", alpha 0, k1 1", L.WarpedSoftmaxLoss, {"alpha": 0.0, "k1": 1.0, "k2": 1.5}),
        (", t and t^1.5", L.WarpedSoftmaxLoss, {"f1": torch.positive, "f2": L.Power(1.5)}),
        ("", L.HISTLoss, {"hidden": 5, "regularizers": regular}),
        (", weighed, one by one", L.HISTLoss, {"hidden": 5, "regularizers": regular}),
    ]
    found: dict[str, Make] = {}
    for note, make, keywords in made:
        name = f"{make.__name__}{note}"
        found[f"{name}, K=1"] = _maker(make, proxies_per_class=1, **keywords)
        found[f"{name}, K=3, in chunks"] = _maker(make, proxies_per_class=3, chunk_size=2, **keywords)
    contrastive = {"loss": pml.ContrastiveLoss(), "miner": None}
    found["PairwiseLoss(Contrastive)"] = _maker(L.PairwiseLoss, **contrastive)
    multi = {"loss": pml.MultiSimilarityLoss(), "miner": miners.MultiSimilarityMiner()}
    found["PairwiseLoss(MultiSimilarity)"] = _maker(L.PairwiseLoss, **multi)
    found["PairwiseLoss(Contrastive, memory)"] = _maker(L.PairwiseLoss, **contrastive, memory_size=16)
    return found


def _maker(make: Make, **keywords: Any) -> Make:
    def made(classes: int, **more: Any) -> nn.Module:
        loss = make(classes, DIM, **keywords, **more)
        if isinstance(loss, L.ProxyLoss):
            loss.count_classes(torch.arange(1, classes + 1))
        return loss

    return made


def scalar(name: str, loss: nn.Module, x: Tensor, y: Tensor, share: int = 1) -> Tensor:
    """What is trained: the loss, or of values one by one, this process's share of something made of them."""
    keywords = {"weights": x.detach().square().sum(1)} if "weighed" in name else {}
    if "one by one" not in name:
        return loss(x, y, **keywords)
    return (loss(x, y, reduction="none", **keywords) * x.detach()[:, 0]).sum() / share


def layouts(name: str) -> list[str]:
    """Each loss in every layout that it has; of one proxy a class by ordinary autograd, of three in chunks."""
    if name.startswith("PairwiseLoss"):
        return ["replicated"]
    chosen = ["sharded", "sampled"] if name.endswith("in chunks") else ["replicated", "sharded"]
    return [layout for layout in chosen if layout != "sharded" or not name.startswith("HIST")]


def compare(parallel: DistributedDataParallel, name: str, make: Make, layout: str, classes: int) -> dict[str, float]:
    """The errors of a step of all processes, on this process."""
    rank, world = dist.get_rank(), dist.get_world_size()
    network = parallel.module
    network.zero_grad()
    torch.manual_seed(0)
    loss = make(classes, **({"sample_rate": 0.3} if layout == "sampled" else {}))
    alone, loss_alone = copy.deepcopy(network), copy.deepcopy(loss)
    loss.distribute(**({"sharded": True} if layout == "sharded" else {}))  # type: ignore[operator]
    values, values_alone = [], []
    for number, size in enumerate(BATCHES):
        x, y = torch.randn(size, FEATURES), torch.randint(classes, (size,))
        mine = slice(*_cuts(size, world)[rank : rank + 2])
        last = number == len(BATCHES) - 1
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
    return {
        "value": _worst([torch.stack(values), *_averages(loss)], [torch.stack(values_alone), *_averages(loss_alone)]),
        "network": _worst(_gradients(network), _gradients(alone)),
        "proxies": _proxy_error(loss, loss_alone, layout, classes),
    }


def _cuts(size: int, world: int) -> list[int]:
    """Where a batch is cut: unevenly, and with nothing for the last of many processes."""
    cuts = [size * rank // world for rank in range(world)] + [size]
    return [*cuts[:-2], size, size] if world > 2 else cuts


def _proxy_error(loss: nn.Module, alone: nn.Module, layout: str, classes: int) -> float:
    theirs = _gradients(alone)
    if layout != "sharded":
        return _worst(_gradients(loss), theirs)
    own = part_of(classes, dist.get_rank(), dist.get_world_size())
    return _worst(_gradients(loss), [each[own] for each in theirs], theirs)


def _averages(loss: nn.Module) -> list[Tensor]:
    return list(loss.buffers()) if isinstance(loss, L.ProxyLoss) else []


def _gradients(module: nn.Module) -> list[Tensor]:
    return [each.grad.to_dense() for each in module.parameters() if each.grad is not None]


def _worst(found: list[Tensor], expected: list[Tensor], scales: list[Tensor] | None = None) -> float:
    errors = [_error(*each) for each in zip(found, expected, scales or expected, strict=True)]
    return max(errors, default=0.0)


def _error(found: Tensor, expected: Tensor, scale: Tensor) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if found.numel() == 0:
        return 0.0
    error = float((found - expected).detach().abs().max() / scale.detach().abs().max())
    return math.inf if math.isnan(error) else error  # max() would lose a nan


def work(rank: int, world: int, folder: str) -> None:
    """One process: the worst errors of all, written by the first."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world)
    parallel = DistributedDataParallel(nn.Linear(FEATURES, DIM))
    classes = {"replicated": 9 if world < 4 else 5, "sharded": 9 if world < 4 else 5, "sampled": 40}
    found = {
        f"{name} | {layout}": compare(parallel, name, make, layout, classes[layout])
        for name, make in cases().items()
        for layout in layouts(name)
    }
    worst: list[Any] = [None] * world
    dist.all_gather_object(worst, found)
    if rank == 0:
        joined = {row: {key: max(one[row][key] for one in worst) for key in found[row]} for row in found}
        Path(folder, f"{world}.json").write_text(json.dumps(joined))
    del parallel  # torch 2.9 may hang where its reducer is the last that holds the group
    dist.destroy_process_group()


def measure(processes: list[int]) -> dict[int, dict[str, dict[str, float]]]:
    """By number of processes, loss and layout, the worst errors over batches, classes and processes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # What each process would import for itself is imported before they fork.
    cases()
    importlib.import_module("torch._dynamo")
    with tempfile.TemporaryDirectory() as folder:
        for world in processes:
            mp.start_processes(work, (world, folder), world, start_method="fork")
        return {world: json.loads(Path(folder, f"{world}.json").read_text()) for world in processes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = measure(arguments.processes)
    if arguments.json:
        print(json.dumps(table))
    else:
        rows = next(iter(table.values()))
        print(f"{'value, network, proxies':64}" + "".join(f"{f'{world} processes':>27}" for world in table))
        for row in rows:
            cells = ["  ".join(f"{error:7.0e}" for error in table[world][row].values()) for world in table]
            print(f"{row:64}" + "".join(f"{cell:>27}" for cell in cells))
        print("worst:", max(error for found in table.values() for each in found.values() for error in each.values()))
