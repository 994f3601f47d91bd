"""What two processes hold and move in a step, counted, beside what `proxemic plan` says.

    python benchmarks/plan.py            # 100,000 classes
    python benchmarks/plan.py --smoke    # small sizes, seconds

Of each setting, forward, backward and the optimiser's step: every tensor that is held at the fullest moment, the bytes
that the collectives move, and the plan over the count.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from measure import Held, Moved
from proxemic.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from proxemic.optim import step_rows
from proxemic.training.memory import Needs, Setting

WORLD = 2


def settings(*, smoke: bool) -> Iterator[Setting]:
    """What is measured."""
    classes, dim, batch = (6_000, 32, 64) if smoke else (100_000, 128, 256)
    for class_wise, sharded, rate, optimizer in product(
        (False, True), (False, True), (1.0, 0.1), ("sgd-momentum", "adamw")
    ):
        yield Setting(classes, dim, 1, batch, WORLD, sharded, rate, optimizer, class_wise)


def measure(setting: Setting) -> dict[str, float]:
    """Bytes held at most, of those the ones that are always, and bytes moved, on this process."""
    make = ProxyAnchorLoss if setting.class_wise else NormalizedSoftmaxLoss
    loss = make(setting.classes, setting.dim, proxies_per_class=setting.proxies, sample_rate=setting.sample_rate)
    loss.distribute(sharded=setting.sharded)
    optimizer: Optimizer
    if setting.optimizer == "adamw":
        optimizer = AdamW(loss.parameters(), lr=0.01)
    else:
        optimizer = SGD(loss.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    step_rows(optimizer)
    samples = setting.batch // WORLD
    x, y = torch.randn(samples, setting.dim, requires_grad=True), torch.randint(setting.classes, (samples,))

    def step() -> None:
        loss(x, y).backward()
        optimizer.step()

    step()  # makes the state
    optimizer.zero_grad()
    x.grad = None
    kept = [each for each in optimizer.state[loss.proxies].values() if isinstance(each, Tensor)]
    with Held(x, y, loss.proxies, *kept) as held, Moved() as moved:
        step()
    always = sum(each.nbytes for each in (loss.proxies, *kept))
    return {"peak": always + held.most, "made": held.most, "moved": moved.bytes}


def work(rank: int, folder: str, smoke: bool) -> None:
    """One process; the first has the most classes, and says what it found."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    found = [measure(setting) for setting in settings(smoke=smoke)]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it run?")
    smoke = parser.parse_args(argv).smoke
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (folder, smoke), WORLD, start_method="fork")
        found = json.loads(Path(folder, "found.json").read_text())
    print(
        f"{'setting':44} {'held MB':>9} {'plan/held':>10} {'of that made':>13} {'plan/made':>10} {'moved':>11} "
        f"{'plan/moved':>11}"
    )
    for setting, each in zip(settings(smoke=smoke), found, strict=True):
        needs = Needs.of(setting)
        made = needs.peak - needs.held["proxies"] - needs.held["optimiser state"]
        name = ", ".join(
            (
                "class-wise" if setting.class_wise else "data-wise",
                "sharded" if setting.sharded else "replicated",
                f"r={setting.sample_rate:g}",
                setting.optimizer,
            )
        )
        moved = sum(needs.moved.values())
        print(
            f"{name:44} {each['peak'] / 1e6:9.3f} {needs.peak / each['peak']:10.3f} {each['made'] / 1e6:13.3f} "
            f"{made / each['made']:10.3f} {each['moved']:11.0f} {moved / each['moved']:11.6f}"
        )


if __name__ == "__main__":
    main()
