"""Count the memory and the transfers of a step of two processes, and compare them with `proxemic plan`.

    python benchmarks/plan.py            # 100,000 classes
    python benchmarks/plan.py --smoke    # small sizes, seconds

For each setting, the script counts the peak of all tensors during forward, backward and optimiser step, and the bytes
of the collectives, and divides the plan by these counts.
"""

import json
import os
import tempfile
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from measure import Held, Moved, command, print_header, print_row
from proxemic.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from proxemic.optim import step_rows
from proxemic.training.memory import Needs, Setting

WORLD = 2


def settings(smoke: bool) -> list[Setting]:
    """Return the settings to measure."""
    classes, dim, batch = (6_000, 32, 64) if smoke else (100_000, 128, 256)
    varied = product((False, True), (False, True), (1.0, 0.1), ("sgd-momentum", "adamw"))
    return [
        Setting(classes, dim, 1, batch, WORLD, sharded, rate, optimizer, class_wise)
        for class_wise, sharded, rate, optimizer in varied
    ]


def measure(setting: Setting) -> dict[str, float]:
    """Count the peak of memory, the memory that a step allocates, and the transferred bytes of this process."""
    make = ProxyAnchorLoss if setting.class_wise else NormalizedSoftmaxLoss
    loss = make(setting.classes, setting.dim, proxies_per_class=setting.proxies, sample_rate=setting.sample_rate)
    loss.distribute(sharded=setting.sharded)
    optimizer: Optimizer = SGD(loss.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    if setting.optimizer == "adamw":
        optimizer = AdamW(loss.parameters(), lr=0.01)
    step_rows(optimizer)
    samples = setting.batch // WORLD
    x, y = torch.randn(samples, setting.dim, requires_grad=True), torch.randint(setting.classes, (samples,))

    def step() -> None:
        loss(x, y).backward()
        optimizer.step()

    step()  # creates the state
    optimizer.zero_grad()
    x.grad = None
    kept = [value for value in optimizer.state[loss.proxies].values() if isinstance(value, Tensor)]
    with Held(x, y, loss.proxies, *kept) as held, Moved() as moved:
        step()
    always = sum(tensor.nbytes for tensor in (loss.proxies, *kept))
    return {"peak": always + held.most, "made": held.most, "moved": moved.bytes}


def work(rank: int, folder: str, smoke: bool) -> None:
    """Measure in one process; the first process has the most classes, and writes the results."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    found = [measure(setting) for setting in settings(smoke)]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(*, smoke: bool = False) -> None:
    """Measure, and print a row for each setting."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (folder, smoke), WORLD, start_method="fork")
        found = json.loads(Path(folder, "found.json").read_text())
    print_header("setting", "held MB", "plan/held", "of that made", "plan/made", "moved", "plan/moved")
    for setting, counted in zip(settings(smoke), found, strict=True):
        needs = Needs.of(setting)
        made, moved = needs.peak - needs.held["proxies"] - needs.held["optimiser state"], sum(needs.moved.values())
        kind = "class-wise" if setting.class_wise else "data-wise"
        layout = "sharded" if setting.sharded else "replicated"
        print_row(
            f"{kind}, {layout}, r={setting.sample_rate:g}, {setting.optimizer}",
            *(f"{counted['peak'] / 1e6:.3f}", f"{needs.peak / counted['peak']:.3f}"),
            *(f"{counted['made'] / 1e6:.3f}", f"{made / counted['made']:.3f}"),
            *(f"{counted['moved']:.0f}", f"{moved / counted['moved']:.6f}"),
        )


if __name__ == "__main__":
    command(main)
