"""The five cases, and the ways to compute a step of them: ours, the dense definition, and other people's."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

import losses
import proxemic.losses
from gpu_stages.timing import Step
from operations import CASES as SIZES
from proxemic.losses import ProxyLoss
from proxemic.losses.scores.plan import Plan
from proxemic.precision import matmul_precision


@dataclass(frozen=True)
class Case:
    """A loss and its sizes B, D, C, K."""

    loss: str
    batch: int
    dim: int
    classes: int
    proxies: int

    @property
    def class_wise(self) -> bool:
        """Whether negatives are summed over the batch."""
        return not getattr(proxemic.losses, self.loss)(2, 2).data_wise

    def make(self, device: torch.device, **options: Any) -> ProxyLoss:
        """The loss, made where it is to be."""
        with device:
            return getattr(proxemic.losses, self.loss)(
                self.classes, self.dim, proxies_per_class=self.proxies, **options
            )


CASES = {name: Case(*sizes) for name, sizes in SIZES.items()}
SMOKE = {"sop": Case("SoftTripleLoss", 32, 16, 4_500, 2), "faces": Case("NormalizedSoftmaxLoss", 32, 16, 9_000, 1)}

Make = Callable[[Case, torch.device], Step | None]


def ours(case: Case, device: torch.device, *, cpu_chunks: bool = False, **options: Any) -> Step:
    """This package's loss; with ``cpu_chunks`` in chunks as they fit a processor's cache."""
    if cpu_chunks:
        scoring = case.make(torch.device("meta"), init=lambda _: None).scoring
        *_, batch, dim, classes, proxies = astuple(case)
        options["chunk_size"] = Plan.of(scoring, batch, classes, proxies, dim).chunk
    loss = case.make(device, **options)
    return Step(lambda x, y: loss(x, y).backward(), [*loss.parameters()])


def dense(
    case: Case, device: torch.device, precision: Literal["ieee", "tf32", "half"], *, compiled: bool = False
) -> Step:
    """The same through ordinary autograd, all scores at once; in half precision by autocast."""
    loss = case.make(device)
    function = torch.compile(losses.dense_loss) if compiled else losses.dense_loss

    def call(x: Tensor, y: Tensor) -> None:
        with matmul_precision("ieee" if precision == "half" else precision):
            with torch.autocast(device.type, torch.float16, enabled=precision == "half"):
                value = function(loss, x, y)
            value.backward()

    return Step(call, [*loss.parameters()])


def pml(case: Case, device: torch.device, precision: Literal["ieee", "tf32"]) -> Step | None:
    """Pytorch-metric-learning's loss of the same name."""
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
    """A softmax head as Partial FC computes it on one GPU with all classes: cosines in float16, the rest in float32.

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
    """Partial FC's head, for the losses that it has."""
    constants = {"ArcFaceLoss": (64.0, 0.5), "NormalizedSoftmaxLoss": (20.0, 0.0)}
    if case.loss not in constants:
        return None
    with device:
        head = Float16Head(case.classes, case.dim, *constants[case.loss])
    return Step(lambda x, y: head(x, y).backward(), [head.weight])


def linear_cross_entropy(case: Case, device: torch.device, half: bool) -> Step | None:
    """Torch's own function, from 2.13 on, which holds the scores of a part of the batch."""
    function: Any = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if function is None or case.loss != "NormalizedSoftmaxLoss":
        return None
    weight = nn.Parameter(torch.randn(case.classes, case.dim, device=device))
    options = torch.nn.LinearCrossEntropyOptions()
    dtype = torch.float16 if half else torch.float32

    def call(x: Tensor, y: Tensor) -> None:
        units = normalize(weight, dim=1).to(dtype)
        function(20 * normalize(x, dim=1).to(dtype), units, y, options=options).backward()

    return Step(call, [weight])


OURS: dict[str, Make] = {
    "chunks of a CPU": partial(ours, cpu_chunks=True),
    "float32": partial(ours, products="float32"),
    "tf32": partial(ours, products="tf32"),
    "half": partial(ours, products="half"),
    "split": partial(ours, products="split"),
}
PEERS: dict[str, Make] = {
    "dense, float32": partial(dense, precision="ieee"),
    "dense, tf32": partial(dense, precision="tf32"),
    "dense, half": partial(dense, precision="half"),
    "dense, half, compiled": partial(dense, precision="half", compiled=True),
    "PML, float32": partial(pml, precision="ieee"),
    "PML, tf32": partial(pml, precision="tf32"),
    "Partial FC, half": partial_fc,
    "linear_cross_entropy, float32": partial(linear_cross_entropy, half=False),
    "linear_cross_entropy, half": partial(linear_cross_entropy, half=True),
}
