"""Program of the fixture `unlike`: steps of three processes that differ."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

TESTS = Path(__file__).parents[1]
CLASSES, DIM = 9, 7


def batch(rank: int) -> tuple[Tensor, Tensor]:
    """Return four of eight samples for each of two processes, and none for the third."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, DIM, generator=rng), torch.randint(CLASSES, (8,), generator=rng)
    mine = slice(4 * rank, 4 * rank + 4)
    return x[mine].clone().requires_grad_(rank < 2), y[mine]


def seeded_apart(rank: int) -> dict[str, list[float]]:
    """Compute value and sums of the state of losses that each process has initialised differently."""
    from pytorch_metric_learning.losses import ContrastiveLoss

    from proxemic.losses import HISTLoss, NormalizedSoftmaxLoss, PairwiseLoss

    torch.manual_seed(rank)
    found = {}
    for loss in (
        NormalizedSoftmaxLoss(CLASSES, DIM),
        HISTLoss(CLASSES, DIM, hidden=5),
        PairwiseLoss(CLASSES, DIM, loss=ContrastiveLoss(), memory_size=16),
    ):
        if isinstance(loss, PairwiseLoss) and rank == 0:
            loss(*batch(0))  # what is in its memory, and where the next batch goes
        loss.distribute()
        x, y = batch(rank)
        value = loss(x, y)
        value.backward()
        state = [float(item.double().sum()) for item in loss.state_dict().values()]
        found[type(loss).__name__] = [value.item(), *state]
    return found


def two_of_three(rank: int) -> dict[str, Any]:
    """Compare a loss over a group of two with one process that has their joined batch."""
    from proxemic.losses import ProxyAnchorLoss

    group = dist.new_group([0, 1])
    torch.manual_seed(5)
    loss, alone = ProxyAnchorLoss(CLASSES, DIM), ProxyAnchorLoss(CLASSES, DIM)
    alone.load_state_dict(loss.state_dict())
    try:
        loss.distribute(group=group, sharded=True)  # type: ignore[arg-type] # -100 on the third process
    except ValueError as error:
        return {"refused": str(error)}
    x, y = batch(rank)
    joined, labels = (torch.cat([batch(0)[part], batch(1)[part]]).detach() for part in (0, 1))
    value, expected = loss(x, y), alone(joined, labels)
    value.backward()
    expected.backward()
    assert loss.proxies.grad is not None
    assert alone.proxies.grad is not None
    own = slice(0, 5) if rank == 0 else slice(5, 9)
    return {
        "values": [value.item(), expected.item()],
        "gradients": [loss.proxies.grad.flatten().tolist(), alone.proxies.grad[own].flatten().tolist()],
    }


def sampled_steps(rank: int) -> list[int]:
    """Count the rows of sampled, sharded proxies and of their momentum that a step changes."""
    from proxemic.losses import NormalizedSoftmaxLoss
    from proxemic.optim import step_rows

    loss = NormalizedSoftmaxLoss(90, DIM, sample_rate=0.1)
    loss.distribute(sharded=True)
    optimizer = step_rows(torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1))
    before = loss.proxies.detach().clone()
    loss(*batch(rank)).backward()
    optimizer.step()
    momentum = optimizer.state[loss.proxies]["momentum_buffer"]
    return [int(value.flatten(1).any(1).sum()) for value in (loss.proxies - before, momentum)]


def checkpoints(rank: int, folder: Path) -> dict[str, Any]:
    """Return what a process finds after `save_shards`, and the errors that it gets."""
    from proxemic.distributed.checkpoint import load_shards, save_shards

    rows, found = {"rows": torch.full((2 if rank < 2 else 1, 3), float(rank))}, {}
    replace = Path.replace

    def later(path: Path, target: Path) -> Path:
        time.sleep(0.5)
        return replace(path, target)

    Path.replace = later  # type: ignore[method-assign, assignment]
    save_shards(folder / "one", rows, 5, dist.group.WORLD)
    found["there"] = (folder / "one").is_dir()
    try:
        save_shards(folder / "one", rows, 5, dist.group.WORLD)
    except OSError as error:
        found["saved"] = str(error)
    try:
        load_shards(folder / ("none" if rank == 1 else "one"), rows, 5, dist.group.WORLD)
    except ValueError as error:
        found["loaded"] = str(error)
    found["left"] = sorted(path.name for path in folder.glob("one*"))
    return found


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS)]
    from processes import write

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    write(
        {
            "seeded apart": seeded_apart(rank),
            "two of three": two_of_three(rank),
            "sampled steps": sampled_steps(rank),
            "checkpoints": checkpoints(rank, Path(sys.argv[1])),
        }
    )
    dist.destroy_process_group()
