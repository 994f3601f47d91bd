"""Sharded proxies from 4 processes to 1, to 3 and back to 4: what of them changes, and the losses that follow.

    uv run python benchmarks/resharding.py

Each training goes three steps further on its own number of processes. The last of them, on 4 again, must go on exactly
as the first did; the others, which add in another order, within rounding.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from proxemic.distributed.checkpoint import load_shards, load_whole, save_shards
from proxemic.losses import MultiProxyAnchorLoss, ProxyLoss, WarpedSoftmaxLoss

CLASSES, DIM, BATCH, STEPS = 11, 6, 12, 3
JOURNEY = [4, 1, 3, 4]
LOSSES = {
    "data-wise (warped softmax)": lambda: WarpedSoftmaxLoss(CLASSES, DIM, alpha=2.0, k1=0.6, k2=1.5),
    "class-wise (MPA, K=2)": lambda: MultiProxyAnchorLoss(CLASSES, DIM, proxies_per_class=2),
}
OPTIMIZERS = {
    # Fused kernels, which do not take a DTensor.
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, fused=True),
}


def work(rank: int, world: int, stop: int, folder: str, loss_name: str, optimizer_name: str) -> None:
    """One stop of the journey: take up where the one before was, save, and go three steps further."""
    torch.set_num_threads(1)
    group = None
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store-{stop}", rank=rank, world_size=world)
        group = dist.group.WORLD
    torch.manual_seed(0)
    loss = LOSSES[loss_name]()
    if group is not None:
        loss.distribute(sharded=True)
    optimizer = OPTIMIZERS[optimizer_name](loss.parameters())
    here, there = Path(folder, f"stop-{stop}"), Path(folder, f"stop-{stop - 1}")
    if stop == 0:
        train(loss, optimizer, rank, world, first=0)
    else:
        train(loss, optimizer, rank, world, first=1000)  # other values, to be replaced
        tensors = everything(loss, optimizer)
        for value in tensors.values():
            value.detach().fill_(torch.nan)
        load_shards(there, tensors, CLASSES, group)
        for value in optimizer.state[loss.proxies].values():
            if isinstance(value, torch.Tensor) and value.ndim == 0:
                value.fill_(STEPS)
    save_shards(here, everything(loss, optimizer), CLASSES, group)
    following = train(loss, optimizer, rank, world, first=STEPS)
    if rank == 0:
        Path(folder, f"losses-{stop}.json").write_text(json.dumps(following))
    if group is not None:
        dist.barrier()
        dist.destroy_process_group()


def everything(loss: ProxyLoss, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The proxies, and what the optimiser keeps of each."""
    state = optimizer.state[loss.proxies].items()
    like = {name: value for name, value in state if isinstance(value, torch.Tensor) and value.ndim}
    return {"proxies": loss.proxies.detach(), **like}


def train(loss: nn.Module, optimizer: torch.optim.Optimizer, rank: int, world: int, first: int) -> list[float]:
    """The losses of three steps, of which each process has its part of the batches."""
    values = []
    for step in range(first, first + STEPS):
        rng = torch.Generator().manual_seed(step)
        x, y = torch.randn(BATCH, DIM, generator=rng), torch.randint(CLASSES, (BATCH,), generator=rng)
        mine = slice(BATCH * rank // world, BATCH * (rank + 1) // world)
        optimizer.zero_grad()
        value = loss(x[mine], y[mine])
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values


def travel() -> dict[str, Any]:
    """By loss and optimiser: whether what was saved is the same at every stop, and the losses that follow each."""
    found: dict[str, Any] = {}
    for loss, optimizer in zip(LOSSES, OPTIMIZERS, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            for stop, world in enumerate(JOURNEY):
                mp.start_processes(work, (world, stop, folder, loss, optimizer), world, start_method="fork")
            saved = [Path(folder, f"stop-{stop}") for stop in range(len(JOURNEY))]
            names = ["proxies", "momentum_buffer" if "SGD" in optimizer else "sum"]
            whole = [[load_whole(path, name) for name in names] for path in saved]
            found[f"{loss}, {optimizer}"] = {
                "tensors": names,
                "files": [len(list(path.iterdir())) for path in saved],
                "same": [all(map(torch.equal, one, whole[0])) for one in whole],
                "losses": [json.loads(Path(folder, f"losses-{stop}.json").read_text()) for stop in range(len(saved))],
            }
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = travel()
    if arguments.json:
        print(json.dumps(table))
    else:
        for name, row in table.items():
            print(f"{name}: {', '.join(row['tensors'])}")
            for world, files, same, losses in zip(JOURNEY, row["files"], row["same"], row["losses"], strict=True):
                values = "  ".join(f"{value:.9f}" for value in losses)
                print(f"  {world} processes, {files} files, bit for bit the same: {same}; next losses {values}")
