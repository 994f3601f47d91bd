"""How long a step takes, in every way that there is, and what the optimisers take."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW

import sampling
from gpu_stages.machine import state
from gpu_stages.rows import Row, Rows
from gpu_stages.timing import SIDE, ceilings, measure, median_milliseconds, release, roofline
from gpu_stages.variants import CASES, OURS, PEERS, SMOKE, Case, Make
from proxemic.losses import NormalizedSoftmaxLoss
from proxemic.optim import clip_norm


def run(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """All rows of the stage."""
    cases = SMOKE if smoke else CASES
    add_ceilings(rows, device, smoke=smoke)
    for name, case in cases.items():
        for way, make in (OURS | PEERS).items():
            rows.add(f"{name}: {way}", partial(time_step, case, make, device, rows))
    classes, dim = (200, 16) if smoke else (85_742, 512)
    for kind, way in product(("SGD", "AdamW"), ("foreach", "fused")):
        rows.add(f"optimiser: {kind}, {way}", partial(time_optimizer, kind, way, classes, dim, device, smoke=smoke))
    for kind, name in product(sampling.LOSSES, sampling.OPTIMIZERS):
        rows.add(f"sampling: {kind}, {name}", partial(time_sampled, kind, name, device, smoke=smoke))
    rows.add("clipping under a GradScaler", partial(clip_scaled, device))


def add_ceilings(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """What the machine can do, beside which steps are seen, and its state."""
    rows.add("state", lambda: state(device))
    rows.add("ceilings", lambda: ceilings(device, 128 if smoke else SIDE))


def time_step(case: Case, make: Make, device: torch.device, rows: Rows) -> Row:
    """A forward and backward of one of the cases."""
    release(device)
    step = make(case, device)
    if step is None:
        return {"there is none": True}
    row = measure(step, case.batch, case.dim, case.classes, device)
    least = roofline(case.batch, case.dim, case.classes, case.proxies, case.class_wise, rows["ceilings"])
    return row | {"over the roofline": row["ms"] / least}


def time_optimizer(kind: str, way: str, classes: int, dim: int, device: torch.device, *, smoke: bool) -> Row:
    """The step of an optimiser over a ResNet-50 and proxies, gradients aside."""
    release(device)
    with device:
        parameters = [*network(smoke=smoke).parameters(), *NormalizedSoftmaxLoss(classes, dim).parameters()]
    for each in parameters:
        each.grad = torch.randn_like(each)
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {"SGD": partial(SGD, momentum=0.9), "AdamW": AdamW}
    optimizer = makers[kind](parameters, lr=1e-4, **{way: True})
    return median_milliseconds(lambda _: optimizer.step(), device)


def network(*, smoke: bool) -> nn.Module:
    """A ResNet-50 without its classifier."""
    if smoke:
        return nn.Linear(8, 8)
    import timm

    return timm.create_model("resnet50", num_classes=0)


def time_sampled(kind: str, optimizer: str, device: torch.device, *, smoke: bool) -> Row:
    """A whole step with a tenth of the classes beside one with all."""
    release(device)
    classes, dim, rounds = (2_000, 16, 2) if smoke else (200_000, 512, 10)
    seconds = sampling.compare(kind, optimizer, classes, dim, rounds, device.type)
    return {f"{name} ms": 1e3 * each for name, each in seconds.items()} | {
        "ratio": seconds["sampled"] / seconds["full"]
    }


def clip_scaled(device: torch.device) -> Row:
    """How far steps of a fused optimiser with a GradScaler and clipping end from those without a scaler.

    Clipped while they are still scaled, the gradients would all but vanish.
    """
    ends: list[torch.Tensor] = []
    for enabled in (False, True):
        torch.manual_seed(0)
        loss = NormalizedSoftmaxLoss(50, 16).to(device)
        optimizer = SGD(loss.parameters(), lr=1.0, fused=True)
        scaler: Any = torch.amp.GradScaler(device.type, enabled=enabled)
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            x = torch.randn(20, 16, generator=generator).to(device)
            optimizer.zero_grad()
            scaler.scale(loss(x, torch.arange(20, device=device))).backward()
            scaler.unscale_(optimizer)
            clip_norm(loss.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        ends.append(loss.proxies.detach())
    return {"relative difference": float((ends[1] - ends[0]).norm() / ends[0].norm())}
