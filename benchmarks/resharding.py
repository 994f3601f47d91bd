"""Reshard proxies from 4 processes to 1, to 3 and back to 4, and compare the tensors and the following losses.

    uv run python benchmarks/resharding.py

Each stop trains three more steps on its number of processes. The last stop, on 4 processes again, must give exactly the
losses of the first; the others may differ by rounding, because they sum in another order.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from measure import command
from proxemic.distributed.checkpoint import load_shards, load_whole, save_shards
from proxemic.losses import MultiProxyAnchorLoss, ProxyLoss, WarpedSoftmaxLoss

CLASSES, DIM, BATCH, STEPS = 11, 6, 12, 3
JOURNEY = [4, 1, 3, 4]
CASES = {  # fused kernels, which do not take a DTensor
    "data-wise (warped softmax), SGD, momentum": (
        lambda: WarpedSoftmaxLoss(CLASSES, DIM, alpha=2.0, k1=0.6, k2=1.5),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
        "momentum_buffer",
    ),
    "class-wise (MPA, K=2), Adagrad": (
        lambda: MultiProxyAnchorLoss(CLASSES, DIM, proxies_per_class=2),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, fused=True),
        "sum",
    ),
}


def work(rank: int, world: int, stop: int, folder: str, case: str) -> None:
    """Load the state of the stop before, save it, and train three more steps."""
    torch.set_num_threads(1)
    group = None
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store-{stop}", rank=rank, world_size=world)
        group = dist.group.WORLD
    torch.manual_seed(0)
    make_loss, make_optimizer, _ = CASES[case]
    loss = make_loss()
    if group is not None:
        loss.distribute(sharded=True)
    optimizer = make_optimizer(loss.parameters())
    train(loss, optimizer, rank, world, first=0 if stop == 0 else 1000)  # later, other values, to be replaced
    tensors = everything(loss, optimizer)
    if stop:
        for value in tensors.values():
            value.detach().fill_(torch.nan)
        load_shards(Path(folder, f"stop-{stop - 1}"), tensors, CLASSES, group)
        for value in optimizer.state[loss.proxies].values():
            if isinstance(value, Tensor) and value.ndim == 0:
                value.fill_(STEPS)
    save_shards(Path(folder, f"stop-{stop}"), tensors, CLASSES, group)
    following = train(loss, optimizer, rank, world, first=STEPS)
    if rank == 0:
        Path(folder, f"losses-{stop}.json").write_text(json.dumps(following))
    if group is not None:
        dist.barrier()
        dist.destroy_process_group()


def everything(loss: ProxyLoss, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the proxies and the optimiser's state of them."""
    state = optimizer.state[loss.proxies].items()
    like = {name: value for name, value in state if isinstance(value, Tensor) and value.ndim}
    return {"proxies": loss.proxies.detach(), **like}


def train(loss: nn.Module, optimizer: torch.optim.Optimizer, rank: int, world: int, first: int) -> list[float]:
    """Train three steps with this process's parts of the batches, and return the losses."""
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


def travel(case: str) -> dict[str, Any]:
    """Return whether the saved tensors are equal at every stop, and the losses that follow each stop."""
    with tempfile.TemporaryDirectory() as folder:
        for stop, world in enumerate(JOURNEY):
            mp.start_processes(work, (world, stop, folder, case), world, start_method="fork")
        saved = [Path(folder, f"stop-{stop}") for stop in range(len(JOURNEY))]
        names = ["proxies", CASES[case][-1]]
        whole = [[load_whole(path, name) for name in names] for path in saved]
        return {
            "tensors": names,
            "files": [len(list(path.iterdir())) for path in saved],
            "same": [all(map(torch.equal, tensors, whole[0])) for tensors in whole],
            "losses": [json.loads(Path(folder, f"losses-{stop}.json").read_text()) for stop in range(len(saved))],
        }


def main(*, json_: bool = False) -> None:
    """Print the results of each case."""
    table = {case: travel(case) for case in CASES}
    if json_:
        print(json.dumps(table))
        return
    for case, row in table.items():
        print(f"{case}: {', '.join(row['tensors'])}")
        for world, files, same, losses in zip(JOURNEY, row["files"], row["same"], row["losses"], strict=True):
            values = "  ".join(f"{value:.9f}" for value in losses)
            print(f"  {world} processes, {files} files, bit for bit the same: {same}; next losses {values}")


if __name__ == "__main__":
    command(main)
