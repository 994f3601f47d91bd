"""Whether a GPU computes what a CPU computes in float64, and without the processor waiting for it."""

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim import SGD, AdamW

import proxemic.losses
from gpu_rows.rows import Row, Rows
from losses import LOSSES as COMMON
from proxemic.losses import MaxPooling, MeanProxyNorm, ProxyLoss
from proxemic.losses.scores import sampling
from proxemic.losses.scores.products import Precision
from proxemic.optim import clip_norm

ROOT = Path(__file__).parents[2]
OTHERS = ("SphereFaceLoss", "CosFaceLoss", "MagFaceLoss", "AdaFaceLoss", "ElasticFaceLoss", "ProxyNCAPlusPlusLoss")
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, options) for name, options in COMMON.items()}
LOSSES |= {name: (name, {}) for name in OTHERS} | {"HISTLoss": ("HISTLoss", {"hidden": 6})}
LOSSES["mean proxy"] = "NormalizedSoftmaxLoss", {"regularizers": (MeanProxyNorm(0.5),)}
LOSSES["sub-centers"] = "ArcFaceLoss", {"pooling": MaxPooling()}
COMPILED = ("NormalizedSoftmaxLoss", "ArcFaceLoss", "ProxyAnchorLoss", "MultiProxyAnchorLoss")
BOUNDS: dict[Precision, float] = {"float32": 1e-5, "split": 5e-5, "tf32": 3e-3, "half": 3e-3}
"""The largest relative error of the loss and of each gradient, as vectors."""
ROUGH = {"CurricularFaceLoss": 2e-2}
"""Of losses in which rounding decides, as about which negatives are hard."""


def add(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """Add all rows."""
    classes, batch = (300, 40) if smoke else (20_000, 64)
    rows.add("label out of range", partial(check_labels, device))
    for name in COMPILED if smoke else LOSSES:
        rows.add(f"errors: {name}", partial(errors, name, device, classes, batch))
    for name in () if smoke else COMPILED:
        rows.add(f"errors, compiled: {name}", partial(errors, name, device, 2_000, batch, compiled=True))
    rows.add("waits", partial(waits, device))
    if not smoke:
        rows.add("tests", partial(run_tests, device, 120), 125)


def errors(name: str, device: torch.device, classes: int, batch: int, *, compiled: bool = False) -> Row:
    """Return the largest errors of a loss by precision with their settings, and what is beyond its bound."""
    worst: dict[Precision, tuple[float, str]] = {}
    for proxies, rate in product((1, 3), (1.0,) if compiled else (1.0, 0.3)):
        torch.manual_seed(0)
        loss = make(name, classes, proxies, rate)
        length = 20.0 if loss.reads_norms else 1.0
        x, y = length * torch.randn(batch, loss.embedding_size), torch.randint(classes, (batch,))
        chosen = sampling.choose_classes(y, classes, rate) if rate < 1 else None
        with choosing(chosen):
            exact = copy.deepcopy(loss).double()
            want = results(exact, exact.proxies, x.double(), y)
        loss, x, y = loss.to(device), x.to(device), y.to(device)
        for precision, chunk in product(BOUNDS, (classes // 7, None)):
            loss.products, loss.chunk_size = precision, chunk
            call = torch.compile(loss) if compiled else loss
            waiting = nullcontext() if compiled else not_waited_for(device)
            with choosing(None if chosen is None else chosen.to(device)), waiting:
                found = results(call, loss.proxies, x, y)
            for what, got, right in zip(("loss", "dX", "dW"), found, want, strict=True):
                error = float((plain(got) - plain(right)).norm() / plain(right).norm())
                setting = f"{what}, K = {proxies}, sample_rate {rate}, chunk_size {chunk}"
                worst[precision] = max(worst.get(precision, (0.0, "")), (error, setting))
    bounds = {key: max(bound, ROUGH.get(name, 0) if bound > 1e-4 else 0) for key, bound in BOUNDS.items()}
    wrong = [key for key, (error, _) in worst.items() if not error <= bounds[key]]  # NaN, too
    return {"errors": worst, "beyond the bounds": sorted(wrong)}


def make(name: str, classes: int, proxies: int, rate: float) -> ProxyLoss:
    """Create a loss in evaluation mode, so that no average moves."""
    kind, options = LOSSES[name]
    # Proxies are as long as embeddings: their distances have no digits to lose.
    options = options | {"proxies_per_class": proxies, "sample_rate": rate, "init": torch.nn.init.normal_}
    return getattr(proxemic.losses, kind)(classes, 32, **options).eval()


def results(call: Any, proxies: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return the value and its gradients."""
    x = x.detach().requires_grad_()
    value = call(x, y)
    return value.detach(), *torch.autograd.grad(value, (x, proxies))


def plain(tensor: Tensor) -> Tensor:
    """Return a dense tensor of the CPU in float64."""
    return (tensor.to_dense() if tensor.is_sparse else tensor).cpu().double()


@contextmanager
def choosing(index: Tensor | None) -> Iterator[None]:
    """Let sampled losses look at these classes, which else each device draws for itself."""
    with nullcontext() if index is None else patch.object(sampling, "choose_classes", lambda *_: index):
        yield


@contextmanager
def not_waited_for(device: torch.device, mode: str = "error") -> Iterator[None]:
    """Fail, or warn, where something would wait for a GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits(device: torch.device) -> Row:
    """Count how often the processor waits for a GPU in a step with clipping, by optimiser and share of classes."""
    found: dict[str, int] = {}
    for rate, (name, optimizer) in product((1.0, 0.1), {"SGD": SGD, "AdamW": AdamW}.items()):
        loss = proxemic.losses.ProxyAnchorLoss(2_000, 32, sample_rate=rate).to(device)
        steps: Any = optimizer(loss.parameters(), lr=0.1, fused=None if rate < 1 else True)
        x = torch.randn(40, 32, device=device, requires_grad=True)
        y = torch.randint(2_000, (40,), device=device)
        for warm in (True, False):
            with warnings.catch_warnings(record=True) as said, not_waited_for(device, "default" if warm else "warn"):
                warnings.simplefilter("always")
                steps.zero_grad()
                loss(x, y).backward()
                clip_norm(loss.parameters(), 1.0)
                steps.step()
            found[f"{name}, sample_rate {rate}"] = sum("synchroniz" in str(item.message) for item in said)
    return found


def check_labels(device: torch.device) -> Row:
    """Check that a label out of range ends the process on a GPU and is a `ValueError` on a CPU."""
    code = (
        "import torch; from proxemic.losses import NormalizedSoftmaxLoss\n"
        f"torch.set_default_device('{device.type}')\n"
        "print(NormalizedSoftmaxLoss(5, 4)(torch.randn(2, 4), torch.tensor([0, 5])).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "device-side assert" if device.type == "cuda" else "labels hold 5, but num_classes=5 allows 0 to 4"
    if done.returncode == 0 or expected not in done.stderr:
        raise AssertionError(f"{done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return {"refused": True}


def run_tests(device: torch.device, seconds: float) -> Row:
    """Run the tests of losses and metrics on the device."""
    command = [sys.executable, "-m", "pytest", "tests/losses", "tests/metrics", "--device", device.type, "-q"]
    command += ["-p", "no:cacheprovider", "--override-ini=filterwarnings=default", f"-n{min(os.cpu_count() or 1, 12)}"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"after {seconds:.0f} s: {(error.stdout or b'')[-2000:]!r}") from None
    lines = done.stdout.splitlines()
    failed = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"result": lines[-1] if lines else done.stderr[-300:], "failed tests": failed}
