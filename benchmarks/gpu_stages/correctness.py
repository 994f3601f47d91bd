"""Whether a GPU computes what a CPU computes in float64, and without being waited for."""

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim import SGD, AdamW

import proxemic.losses as ours
from gpu_stages.machine import state
from gpu_stages.rows import Row, Rows
from gpu_stages.timing import SIDE, ceilings
from losses import LOSSES as COMMON
from proxemic.losses import MaxPooling, MeanProxyNorm, ProxyLoss
from proxemic.losses.scores import sampling
from proxemic.losses.scores.compiled import CompileChunks
from proxemic.losses.scores.fused import lacking_on
from proxemic.losses.scores.products import Precision
from proxemic.optim import clip_norm, step_rows

ROOT = Path(__file__).parents[2]
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, options) for name, options in COMMON.items()} | {
    name: (name, {})
    for name in (
        "SphereFaceLoss",
        "CosFaceLoss",
        "MagFaceLoss",
        "AdaFaceLoss",
        "ElasticFaceLoss",
        "ProxyNCAPlusPlusLoss",
        "HISTLoss",
    )
}
LOSSES["mean proxy"] = "NormalizedSoftmaxLoss", {"regularizers": (MeanProxyNorm(0.5),)}
LOSSES["sub-centers"] = "ArcFaceLoss", {"pooling": MaxPooling()}
COMPILED = ("NormalizedSoftmaxLoss", "ProxyAnchorLoss", "MultiProxyAnchorLoss")
WITHOUT_KERNELS = {"CurricularFaceLoss", "EuclideanSoftmaxLoss", "WarpedSoftmaxLoss", "HISTLoss"}
"""Losses that Triton's kernels do not compute."""
BOUNDS: dict[Precision, float] = {"float32": 1e-5, "split": 5e-5, "tf32": 3e-3, "half": 3e-3}
"""The largest relative error of the loss and of each gradient, as vectors."""

Results = tuple[Tensor, ...]


def run(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """All rows of the stage."""
    rows.add("state", lambda: state(device))
    rows.add("ceilings", lambda: ceilings(device, 128 if smoke else SIDE))
    if not smoke:
        rows.add("label out of range", partial(check_labels, device))
    for name in COMPILED if smoke else LOSSES:
        rows.add(f"errors: {name}", partial(errors, name, device, (300, 40) if smoke else (20_000, 64)))
    for name in () if smoke else COMPILED:
        rows.add(f"errors, compiled: {name}", partial(errors, name, device, (2_000, 64), compiled=True))
    for name in () if lacking_on(device.type) else COMPILED if smoke else sorted(LOSSES.keys() - WITHOUT_KERNELS):
        sizes = (200, 40) if smoke else (20_000, 64)
        rows.add(f"errors, Triton: {name}", partial(errors, name, device, sizes, compiled="triton"))
    rows.add("waits", partial(waits, device))
    if not smoke:
        rows.add("tests", lambda: run_tests(["tests/losses", "tests/metrics"], device, rows.seconds_left))


def errors(name: str, device: torch.device, sizes: tuple[int, int], *, compiled: CompileChunks = False) -> Row:
    """The largest errors of a loss by precision, with the settings that they are of, and what is beyond its bound."""
    classes, batch = sizes
    worst: dict[Precision, tuple[float, str]] = {}
    precisions: list[Precision] = [each for each in BOUNDS if compiled != "triton" or each != "split"]
    chunks: dict[CompileChunks, list[int | None]] = {
        False: [classes // 7, classes, None],
        True: [classes // 7],
        "triton": [classes // 7, classes],
    }
    for proxies, rate in product((1, 3), (1.0,) if compiled is True else (1.0, 0.3)):
        torch.manual_seed(0)
        loss = make(name, classes, proxies, rate)
        length = 20.0 if loss.reads_norms else 1.0
        x, y = length * torch.randn(batch, loss.embedding_size), torch.randint(classes, (batch,))
        chosen = sampling.choose_classes(y, classes, rate) if rate < 1 else None
        with choosing(chosen):
            want = results(copy.deepcopy(loss).double(), x.double(), y)
        loss, x, y = loss.to(device), x.to(device), y.to(device)
        loss.compile_chunks = compiled
        for precision, chunk in product(precisions, chunks[compiled]):
            loss.products, loss.chunk_size = precision, chunk
            with choosing(None if chosen is None else chosen.to(device)), not_waited_for(device):
                found = results(loss, x, y)
            for what, got, right in zip(("loss", "dX", "dW"), found, want, strict=True):
                error = float((plain(got) - plain(right)).norm() / plain(right).norm())
                setting = f"{what}, K = {proxies}, sample_rate {rate}, chunk_size {chunk}"
                worst[precision] = max(worst.get(precision, (0.0, "")), (error, setting))
    wrong = [name for name, (error, _) in worst.items() if not error <= BOUNDS[name]]  # NaN, too
    return {"errors": worst, "beyond the bounds": sorted(wrong)}


def make(name: str, classes: int, proxies: int, rate: float, dim: int = 32) -> ProxyLoss:
    """A loss in evaluation mode, so that no average moves."""
    kind, options = LOSSES[name]
    if kind == "HISTLoss":
        options = options | {"hidden": 6}
    # Proxies as long as embeddings: their distances have no digits to lose.
    init = torch.nn.init.normal_
    return getattr(ours, kind)(classes, dim, proxies_per_class=proxies, sample_rate=rate, init=init, **options).eval()


def results(loss: ProxyLoss, x: Tensor, y: Tensor) -> Results:
    """The value and its gradients."""
    x = x.detach().requires_grad_()
    value = loss(x, y)
    return value.detach(), *torch.autograd.grad(value, (x, loss.proxies))


def plain(tensor: Tensor) -> Tensor:
    """A dense tensor of the CPU in float64; NaN remains."""
    return (tensor.to_dense() if tensor.is_sparse else tensor).cpu().double()


@contextmanager
def choosing(index: Tensor | None) -> Iterator[None]:
    """Sampled losses look at these classes, which else each device draws for itself."""
    if index is None:
        yield
        return
    with patch.object(sampling, "choose_classes", lambda *_: index):
        yield


@contextmanager
def not_waited_for(device: torch.device) -> Iterator[None]:
    """Whatever would wait for a GPU within is an error."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits(device: torch.device) -> Row:
    """How often the processor waits for a GPU in a training step, with clipping, by optimiser and share of classes."""
    found: dict[str, int] = {}
    for rate, (name, optimizer) in product((1.0, 0.1), {"SGD": SGD, "AdamW": AdamW}.items()):
        loss = ours.ProxyAnchorLoss(2_000, 32, sample_rate=rate).to(device)
        fused = None if rate < 1 else True
        steps: Any = step_rows(optimizer(loss.parameters(), lr=0.1, fused=fused))
        x = torch.randn(40, 32, device=device, requires_grad=True)
        y = torch.randint(2_000, (40,), device=device)
        for warm in (True, False):
            if device.type == "cuda" and not warm:
                torch.cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    steps.zero_grad()
                    loss(x, y).backward()
                    clip_norm(loss.parameters(), 1.0)
                    steps.step()
                finally:
                    if device.type == "cuda":
                        torch.cuda.set_sync_debug_mode("default")
            found[f"{name}, sample_rate {rate}"] = sum("synchroniz" in str(each.message) for each in said)
    return found


def check_labels(device: torch.device) -> Row:
    """A label out of range ends the process on a GPU, and is a `ValueError` on a CPU; in a process of its own."""
    code = (
        "import torch; from proxemic.losses import NormalizedSoftmaxLoss\n"
        f"loss = NormalizedSoftmaxLoss(5, 4).to('{device.type}')\n"
        f"x, y = torch.randn(2, 4, device='{device.type}'), torch.tensor([0, 5], device='{device.type}')\n"
        "print(loss(x, y).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "device-side assert" if device.type == "cuda" else "labels hold 5, but num_classes=5 allows 0 to 4"
    if done.returncode == 0 or expected not in done.stderr:
        raise AssertionError(f"{done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return {"refused": True}


def run_tests(paths: Sequence[str], device: torch.device, seconds: float) -> Row:
    """The tests of losses and metrics on the device, of which a part is better than none: the worst come last."""
    command = [sys.executable, "-m", "pytest", *paths, "--device", device.type, "-q", "-p", "no:cacheprovider"]
    command += ["--override-ini=filterwarnings=default", f"-n{min(os.cpu_count() or 1, 12)}"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(seconds, 10), check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"after {seconds:.0f} s: {(error.stdout or b'')[-2000:]!r}") from None
    lines = done.stdout.splitlines()
    failed = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"result": lines[-1] if lines else done.stderr[-300:], "failed tests": failed}
