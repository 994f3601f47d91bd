"""Counts, without a GPU, the operations in a training step that make the CPU wait for a GPU."""

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from losses.test_losses import CASES, make
from proxemic import train
from proxemic.losses import ProxyAnchorLoss, ProxyLoss
from proxemic.losses.scores import plan
from proxemic.optim import clip_norm, clip_value, step_rows
from proxemic.recipes import load
from proxemic.training.loop import Training

COMPUTED = set(
    """_local_scalar_dense nonzero masked_select equal bincount histc repeat_interleave _unique2 unique_dim
    unique_consecutive _coalesce""".split()  # noqa: SIM905
)
"""Operations that read their result, or its size, on the processor."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Those that do so where an index is a mask."""
READ = {"cpu", "numpy", "tolist", "__array__"}
MADE = {"tensor", "as_tensor", "asarray"}
"""Copies to a GPU are waited for, too, as they come from memory that is not pinned."""

Waits = Counter[str]


class Computed(TorchDispatchMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        indices = args[1] if name in INDEXED else []
        if name in COMPUTED or any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
            self.waits[f"{asking()} {name}"] += 1
        return function(*args, **(kwargs or {}))


class Copied(TorchFunctionMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        # Where a device is not named but asked for, it is that of some tensor.
        moved = name in MADE and isinstance((kwargs or {}).get("device"), torch.device)
        if name in READ or (moved and not isinstance(args[0], Tensor)):
            self.waits[f"{asking()} {name}"] += 1
        return function(*args, **(kwargs or {}))


def asking() -> str:
    """Return the module and function of this package that called."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("proxemic."):
            return f"{name}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "torch"


class counting(ExitStack):  # noqa: N801
    """Count the waiting operations in a block, by their callers."""

    def __enter__(self) -> Any:
        super().__enter__()
        self.waits: Waits = Counter()
        self.enter_context(Copied(self.waits))
        self.enter_context(Computed(self.waits))
        return self.waits


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let code believe that it runs on a GPU, although the tensors are on the CPU."""
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(plan, "gpu_memory", lambda _: 10**9)


def backward(loss: ProxyLoss, **keywords: Any) -> None:
    x, y = torch.randn(6, 7, requires_grad=True), torch.tensor([0, 1, 1, 4, 39, 39])
    loss(x, y, **keywords).mean().backward()


def test_what_waits_is_counted() -> None:
    with counting() as waits:
        x = torch.arange(5.0)
        assert bool(x[1] == 1)
        assert len(x[x > 2]) == 2
        x.tolist()
        torch.tensor([1.0], device="cpu")
    assert waits == {"torch _local_scalar_dense": 1, "torch index": 1, "torch tolist": 1}


CHECKED = {"proxemic.losses.checks.check_labels _local_scalar_dense": 2}
"""The least and the largest label of the first batch, which are read so that a wrong one is named."""


@pytest.mark.parametrize("case", CASES)
def test_no_loss_waits_after_its_first_batch(case: str) -> None:
    for proxies, rate, chunk in ((1, 1.0, None), (2, 1.0, 7), (1, 0.5, 7)):
        loss = make(case, 40, proxies=proxies, chunk_size=chunk, sample_rate=rate)
        with counting() as waits:
            backward(loss)
        assert waits == CHECKED
        with counting() as waits:
            backward(loss)
            if loss.data_wise:
                backward(loss, weights=torch.ones(6), reduction="none")
        assert waits == {}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("clips", [(), (clip_norm,), (clip_value,)])
def test_no_optimiser_waits_also_for_sampled_rows(optimizer: Any, clips: Any) -> None:
    for rate in (1.0, 0.5):
        loss = ProxyAnchorLoss(40, 7, sample_rate=rate)
        # As on a GPU: sampled rows are stepped by the functions for several tensors.
        steps = optimizer(loss.parameters(), lr=0.1, **({"fused": True} if rate == 1 else {"foreach": True}))
        if rate < 1:
            step_rows(steps)
        for _ in range(3):
            loss.zero_grad()
            backward(loss)  # not counted: who looks on keeps gradients from being handed over
            with counting() as waits:
                for clip in clips:
                    clip(loss.parameters(), 1.0)
                steps.step()
            for caller in ("torch", "proxemic.optim.sparse_rows.step"):
                waits.pop(f"{caller} _local_scalar_dense", None)  # AdamW counts steps on the processor
            assert waits == {}


def test_no_step_of_training_waits_after_the_first(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Waits] = []
    train_batch = Training.train_batch

    def watched(*arguments: Any) -> None:
        with counting() as waits:
            train_batch(*arguments)
        steps.append(waits)

    monkeypatch.setattr(Training, "train_batch", watched)
    values: dict[str, Any] = {"training.epochs": 1, "optim.clip_norm": 1.0, "training.average": {"decay": 0.9}}
    recipe = load(tiny, **values)
    train(recipe, tmp_path / "run", progress=False, test=False, report=lambda _: None)
    assert len(steps) > 1
    count = {"proxemic.training.parts.average._update _local_scalar_dense": 1}  # which is on the processor
    first, *others = steps
    assert first == count | CHECKED
    assert all(waits == count for waits in others)
