"""Time a step of a loss in five cases: ours, the dense definition, and other libraries."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

import losses
import proxemic.losses
from gpu_rows.rows import Row, Rows
from gpu_rows.timing import Step, measure, release, roofline
from operations import CASES as SIZES
from proxemic.losses import ProxyLoss
from proxemic.precision import matmul_precision


@dataclass(frozen=True)
class Case:
    """A loss and its sizes B, D, C, K."""

    loss: str
    batch: int
    dim: int
    classes: int
    proxies: int

    def make(self, device: torch.device, **options: Any) -> ProxyLoss:
        """Create the loss on the device."""
        with device:
            kind = getattr(proxemic.losses, self.loss)
            return kind(self.classes, self.dim, proxies_per_class=self.proxies, **options)


CASES = {name: Case(*sizes) for name, sizes in SIZES.items()}
SMOKE = {"sop": Case("SoftTripleLoss", 32, 16, 4_500, 2), "faces": Case("NormalizedSoftmaxLoss", 32, 16, 9_000, 1)}

Make = Callable[[Case, torch.device], Step | None]
Precision = Literal["ieee", "tf32"]


def add(rows: Rows, device: torch.device, *, smoke: bool) -> None:
    """Add all rows, the most important first; the first four ways are measured twice."""
    first = dict([*WAYS.items()][:4])
    for again, ways in (("", first), ("again, ", first), ("", WAYS)):
        for way, make in ways.items():
            for name, case in (SMOKE if smoke else CASES).items():
                rows.add(f"{name}: {again}{way}", partial(time_step, case, make, device, rows))


def time_step(case: Case, make: Make, device: torch.device, rows: Rows) -> Row:
    """Time the forward and backward of a case."""
    release(device)
    step = make(case, device)
    if step is None:
        return {"not available": True}
    row = measure(step, case.batch, case.dim, case.classes, device)
    class_wise = not getattr(proxemic.losses, case.loss)(2, 2).data_wise
    least = roofline(case.batch, case.dim, case.classes, case.proxies, class_wise, rows["ceilings"])
    return row | {"over the roofline": row["ms"] / least}


def ours(case: Case, device: torch.device, *, compiled: bool = False, **options: Any) -> Step:
    """Return a step of this package's loss."""
    loss = case.make(device, **options)
    if compiled:
        loss.compile()
    return Step(lambda x, y: loss(x, y).backward(), [*loss.parameters()])


def dense(case: Case, device: torch.device, precision: Precision) -> Step:
    """Return a step of ordinary autograd through the definition, with all scores at once."""
    loss = case.make(device)

    def call(x: Tensor, y: Tensor) -> None:
        with matmul_precision(precision):
            losses.dense_loss(loss, x, y).backward()

    return Step(call, [*loss.parameters()])


def pml(case: Case, device: torch.device, precision: Precision) -> Step | None:
    """Return a step of pytorch-metric-learning's loss of the same name."""
    with device:
        loss = losses.peer(case.loss, losses.Size(*astuple(case)[1:], rounds=1))
    if loss is None:
        return None
    loss = loss.to(device)

    def call(x: Tensor, y: Tensor) -> None:
        with matmul_precision(precision):
            loss(x, y).backward()

    return Step(call, [*loss.parameters()])


class Float16Head(nn.Module):
    """The softmax head of Partial FC on one GPU with all classes: cosines in float16, the rest in float32.

    After insightface's ``recognition/arcface_torch/partial_fc_v2.py``, without its work on several GPUs.
    """

    def __init__(self, classes: int, dim: int, scale: float, margin: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(classes, dim))
        self.scale, self.margin = scale, margin

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.float16):
            cosines = linear(normalize(x), normalize(self.weight))
        cosines = cosines.float().clamp(-1, 1)
        if self.margin:
            target = y.unsqueeze(1)
            cosines = cosines.scatter(1, target, (cosines.gather(1, target).arccos() + self.margin).cos())
        return cross_entropy(self.scale * cosines, y)


def partial_fc(case: Case, device: torch.device) -> Step | None:
    """Return a step of Partial FC's head, for the losses that it has."""
    constants = {"ArcFaceLoss": (64.0, 0.5), "NormalizedSoftmaxLoss": (20.0, 0.0)}
    if case.loss not in constants:
        return None
    with device:
        head = Float16Head(case.classes, case.dim, *constants[case.loss])
    return Step(lambda x, y: head(x, y).backward(), [head.weight])


def linear_cross_entropy(case: Case, device: torch.device) -> Step | None:
    """Return a step of torch's function (from 2.13 on) in half precision, which keeps scores of parts of a batch."""
    function: Any = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if function is None or case.loss != "NormalizedSoftmaxLoss":
        return None
    weight = nn.Parameter(torch.randn(case.classes, case.dim, device=device))
    options = torch.nn.LinearCrossEntropyOptions()

    def call(x: Tensor, y: Tensor) -> None:
        units = normalize(weight, dim=1).half()
        function(20 * normalize(x, dim=1).half(), units, y, options=options).backward()

    return Step(call, [weight])


WAYS: dict[str, Make] = {
    "ours": ours,
    "ours, compiled": partial(ours, compiled=True),
    "PML, tf32": partial(pml, precision="tf32"),
    "ours, half, compiled": partial(ours, products="half", compiled=True),
    "Partial FC, half": partial_fc,
    "PML, float32": partial(pml, precision="ieee"),
    "ours, tf32": partial(ours, products="tf32"),
    "ours, half": partial(ours, products="half"),
    "dense, tf32": partial(dense, precision="tf32"),
    "linear_cross_entropy, half": linear_cross_entropy,
}
