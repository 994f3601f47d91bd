"""Program of the fixture `steps`: steps of a loss by two processes."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

TESTS = Path(__file__).parents[1]
CLASSES, DIM, SIZES = 9, 7, (4, 3)


def batch(rank: int, *, even: bool = False) -> tuple[Tensor, Tensor]:
    """Return this process's part of a batch, by `SIZES` or 4 samples."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, DIM, generator=rng), torch.randint(CLASSES, (8,), generator=rng)
    mine = slice(4 * rank, 4 * rank + (4 if even else SIZES[rank]))
    return x[mine].clone().requires_grad_(), y[mine]


def collectives(rank: int) -> dict[str, list[list[Any]]]:
    """List the collectives of forward and backward by loss, with the shapes of their tensors."""
    from pytorch_metric_learning.losses import ContrastiveLoss

    from measure import Moved  # type: ignore[import-not-found]
    from proxemic.losses import MeanProxyNorm, NormalizedSoftmaxLoss, PairwiseLoss, ProxyAnchorLoss
    from proxemic.losses.user_defined import UserLoss

    made: dict[str, tuple[nn.Module, dict[str, bool]]] = {
        "data-wise": (NormalizedSoftmaxLoss(CLASSES, DIM), {"sharded": True}),
        "class-wise": (ProxyAnchorLoss(CLASSES, DIM), {"sharded": True}),
        "even": (ProxyAnchorLoss(CLASSES, DIM), {"sharded": True, "even_batches": True}),
        "replicated": (NormalizedSoftmaxLoss(CLASSES, DIM, proxies_per_class=2), {}),
        "regularised": (NormalizedSoftmaxLoss(CLASSES, DIM, regularizers=[MeanProxyNorm()]), {"sharded": True}),
        "sampled": (ProxyAnchorLoss(CLASSES, DIM, sample_rate=0.01), {}),
        "sampled, sharded": (ProxyAnchorLoss(CLASSES, DIM, sample_rate=0.01), {"sharded": True}),
        "pairs": (PairwiseLoss(CLASSES, DIM, loss=ContrastiveLoss()), {}),
        "own": (UserLoss(CLASSES, DIM, ContrastiveLoss()), {}),
    }
    found = {}
    for name, (loss, layout) in made.items():
        loss.distribute(**layout)  # type: ignore[operator]
        given = batch(rank, even="even_batches" in layout)
        loss(*given)  # the first forward also compares the shards
        with Moved() as forward:
            value = loss(*given)
        with Moved() as backward:
            value.backward()
        found[name] = [forward.calls, backward.calls]
    return found


def sampled_and_sharded(rank: int) -> dict[str, list[float]]:
    """Compare sampled and sharded losses with the dense definition and the weights of the sampled classes."""
    from proxemic.losses import MultiProxyAnchorLoss, SoftTripleLoss
    from proxemic.losses.scores import sampling
    from proxemic.losses.scores.scoring import dense_scores

    count, found = 41, {}
    choose = sampling.choose_classes
    drawn: list[Any] = []
    sampling.choose_classes = lambda *given: drawn.append(choose(*given)) or drawn[-1]
    x, y = (value[rank * 4 :][: SIZES[rank]] for value in (torch.randn(8, DIM), torch.randint(count, (8,))))
    for make in (MultiProxyAnchorLoss, SoftTripleLoss):
        loss = make(count, DIM, proxies_per_class=2, sample_rate=0.3)
        with torch.no_grad():
            loss.proxies.copy_(torch.randn(loss.proxies.shape, generator=torch.Generator().manual_seed(1)))
        whole = loss.proxies.detach().clone().requires_grad_()
        loss.distribute(sharded=True)
        torch.manual_seed(rank)
        leaf = x.clone().requires_grad_()
        value = loss(leaf, y)
        own = torch.autograd.grad(value, (leaf, loss.proxies))
        parts: list[Any] = [None, None]
        dist.all_gather_object(parts, (drawn.pop().tolist(), x, y))
        indexes, xs, ys = zip(*parts, strict=True)
        joined, labels = torch.cat(xs).requires_grad_(), torch.cat(ys)
        starts, held = (0, 21), (21, 20)
        rows, weights = [], []
        for start, size, index in zip(starts, held, indexes, strict=True):
            chosen = [start + row for row in index]
            present = {label for label in labels.tolist() if start <= label < start + size}
            weight = (size - len(present)) / (len(chosen) - len(present))
            rows += chosen
            weights += [1.0 if c in present else weight for c in chosen]
        expected = _expected(loss, dense_scores, joined, labels, whole, rows, torch.tensor(weights))
        all_of = torch.autograd.grad(expected, (joined, whole))
        mine = slice(0, 4) if rank == 0 else slice(4, 7)
        shard = slice(starts[rank], starts[rank] + held[rank])
        found[make.__name__] = [
            abs(value.item() / expected.item() - 1),
            _relative(own[0] / 2, all_of[0][mine]),  # DistributedDataParallel's mean takes the 2 away
            _relative(own[1].to_dense(), all_of[1][shard]),
            float(len(indexes[rank])),
        ]
    sampling.choose_classes = choose
    return found


def _expected(
    loss: Any, dense: Any, x: Tensor, labels: Tensor, whole: Tensor, rows: list[int], weights: Tensor
) -> Tensor:
    from proxemic.losses.scores.sampling import SamplingWeights

    place = torch.tensor([rows.index(label) for label in labels.tolist()])
    among = SamplingWeights(len(whole), weights)
    positive, negative, term = dense(x, whole[rows], place, loss.scoring, list(loss.regularizers), among)
    return loss.objective(positive, negative, labels, x).mean() + term


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def own(rank: int) -> dict[str, list[float]]:
    """Compute value and gradient of a user's module, and of the same loss in this package."""
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    from proxemic.losses import PairwiseLoss
    from proxemic.losses.user_defined import UserLoss

    found = {}
    for name, loss in {
        "own": UserLoss(CLASSES, DIM, MultiSimilarityLoss()),
        "pairs": PairwiseLoss(CLASSES, DIM, loss=MultiSimilarityLoss()),
    }.items():
        loss.distribute()
        x, y = batch(rank)
        value = loss(x, y)
        (gradient,) = torch.autograd.grad(value, x)
        found[name] = [value.item(), *gradient.flatten().tolist()]
    return found


def two_streams(rank: int) -> dict[str, list[float]]:
    """Compute value and gradients of a batch with a reference, on two processes and on one."""
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    from proxemic.losses import PairwiseLoss

    found = {}
    for name in ("one", "two"):
        loss = PairwiseLoss(CLASSES, DIM, loss=MultiSimilarityLoss())
        if name == "two":
            loss.distribute()
        parts = [[batch(value, even=even) for value in (0, 1)] for even in (False, True)]
        mine = [part[rank] for part in parts]
        given = mine if name == "two" else [tuple(map(torch.cat, zip(*part, strict=True))) for part in parts]
        value = loss(*given[0], reference=given[1])
        gradient = torch.cat(torch.autograd.grad(value, [x for x, _ in mine]))
        gradient /= 2 if name == "two" else 1  # DistributedDataParallel's mean takes the 2 away
        found[name] = [value.item(), *gradient.flatten().tolist()]
    return found


def training(rank: int) -> dict[str, Any]:
    """Make some steps with sampled classes; the processes' copies of the proxies must stay equal."""
    from proxemic.losses import NormalizedSoftmaxLoss
    from proxemic.optim import step_rows

    torch.manual_seed(3)
    loss = NormalizedSoftmaxLoss(40, DIM, sample_rate=0.1)
    loss.distribute()
    optimizer = step_rows(torch.optim.AdamW(loss.parameters(), lr=0.1))
    torch.manual_seed(rank)  # each would choose others
    for _ in range(3):
        optimizer.zero_grad()
        loss(*batch(rank)).backward()
        optimizer.step()
    return {"proxies": loss.proxies.flatten().tolist()}


def wrapped(rank: int) -> dict[str, Any]:
    """Wrap a module with sharded proxies by `DistributedDataParallel`, with and without ignoring them."""
    from torch.nn.parallel import DistributedDataParallel

    from proxemic.losses import NormalizedSoftmaxLoss

    class Task(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.model = nn.Linear(DIM, DIM)
            self.loss = NormalizedSoftmaxLoss(10, DIM, **({"init": nn.init.ones_} if name == "constant" else {}))
            self.loss.distribute(sharded=True)
            self.value = torch.compile(self.loss, backend="eager") if "compiled" in name else self.loss

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.value(self.model(x), y)

    found: dict[str, Any] = {}
    for name in ("forgotten", "forgotten, compiled", "ignored", "constant"):
        task = Task(name)
        if name == "ignored":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(task, ["loss.proxies"])
        network = task if name == "constant" else DistributedDataParallel(task)
        try:
            values = [network(*batch(rank, even=True)) for _ in range(2)]
            values[0].backward()
            assert task.loss.proxies.grad is not None
            found[name] = [values[0].item(), values[1].item(), task.loss.proxies.grad.flatten().tolist()]
        except (ValueError, RuntimeError) as error:
            found[name] = str(error)
    return found


def documented(folder: Path) -> dict[str, list[float]]:
    """Compare a step after saving and loading sharded proxies by the documentation's example with one without."""
    from proxemic.losses import NormalizedSoftmaxLoss

    page = (TESTS.parent / "docs" / "distributed.md").read_text()
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "save_shards" in code)
    names: dict[str, Any] = {}
    exec(example, names)
    folder, found = folder / "example", {}
    if dist.get_rank() == 0:
        folder.mkdir()
    for name in ("saved", "loaded"):
        loss = NormalizedSoftmaxLoss(CLASSES, DIM)
        loss.distribute(sharded=True)
        optimizer = torch.optim.AdamW(loss.parameters(), lr=0.1)
        if name == "loaded":
            names["load"](folder, loss, optimizer)
        for step in range(4):
            if name == "loaded" and step < 3:
                continue
            if step == 3 and name == "saved":
                names["save"](folder, loss, optimizer)
                dist.barrier()
            optimizer.zero_grad()
            loss(*batch(dist.get_rank())).backward()
            optimizer.step()
        found[name] = loss.proxies.flatten().tolist()
    return found


def awkward(rank: int) -> dict[str, Any]:
    """Return the errors of one process before it has sent anything, and of both."""
    from proxemic.losses import NormalizedSoftmaxLoss

    loss, found = NormalizedSoftmaxLoss(CLASSES, DIM), {}
    loss.distribute()
    x, y = batch(rank)
    if rank == 1:
        try:
            loss(x, y.clone().fill_(CLASSES))
        except ValueError as error:
            found["label"] = str(error)
    found["after it"] = loss(x, y).item()
    try:
        loss(x[:0], y[:0])
    except ValueError as error:
        found["empty"] = str(error)
    return found


if __name__ == "__main__":
    # Not where doctests are looked for: the benchmarks have a module named losses, as the tests have a folder.
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "benchmarks")]
    from processes import write

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    write(
        {
            "collectives": collectives(rank),
            "sampled and sharded": sampled_and_sharded(rank),
            "own": own(rank),
            "two streams": two_streams(rank),
            "training": training(rank),
            "wrapped": wrapped(rank),
            "documented": documented(Path(sys.argv[1])),
            "awkward": awkward(rank),
        }
    )
    dist.destroy_process_group()
