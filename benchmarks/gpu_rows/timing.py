"""Measure time, memory and kernels of a step on a GPU, or approximations on a CPU, to rehearse."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from measure import Held
from operations import Counted
from proxemic.precision import matmul_precision

SIDE = 8192  # of the matrices whose product shows the peak rate of the machine
TYPES = {"float32": torch.float32, "tf32": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Step:
    """A forward and backward of a batch, and the parameters whose gradients it computes."""

    call: Callable[[Tensor, Tensor], object]
    parameters: Sequence[Tensor]

    def forget(self) -> None:
        """Drop the gradients, as an optimiser's ``zero_grad`` does."""
        for parameter in self.parameters:
            parameter.grad = None


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def release(device: torch.device) -> None:
    """Free the memory of the last row on a GPU."""
    if device.type == "cuda":
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def rounds_on(device: torch.device) -> tuple[int, int]:
    """Return the number of warm-up rounds and of measured rounds; a CPU only rehearses."""
    return (3, 10) if device.type == "cuda" else (1, 2)


def milliseconds(call: Callable[[int], object], device: torch.device) -> list[float]:
    """Measure the milliseconds of each round, on a GPU by events without waiting in between."""
    warm_ups, rounds = rounds_on(device)
    for number in range(warm_ups):
        call(number)
    wait(device)
    if device.type != "cuda":
        taken = []
        for number in range(rounds):
            began = time.perf_counter()
            call(warm_ups + number)
            taken.append(1e3 * (time.perf_counter() - began))
        return taken
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    events[0].record()
    for number in range(rounds):
        call(warm_ups + number)
        events[number + 1].record()
    torch.cuda.synchronize()
    return [events[number].elapsed_time(events[number + 1]) for number in range(rounds)]


def median_milliseconds(call: Callable[[int], object], device: torch.device) -> dict[str, float]:
    """Return the milliseconds of the median, the fastest and the slowest round."""
    taken = milliseconds(call, device)
    return {"ms": statistics.median(taken), "fastest": min(taken), "slowest": max(taken)}


def measure(step: Step, batch: int, dim: int, classes: int, device: torch.device) -> dict[str, float]:
    """Measure milliseconds of a step, its peak of memory beyond parameters and gradients, and its kernels.

    Every round has its own embeddings and labels, so that none are in a cache.
    """
    batches = [
        (torch.randn(batch, dim, device=device, requires_grad=True), torch.randint(classes, (batch,), device=device))
        for _ in range(sum(rounds_on(device)) + 2)
    ]

    def call(number: int) -> None:
        step.forget()
        step.call(*batches[number])

    row = median_milliseconds(call, device)
    step.forget()
    x, y = batches[-1]
    row["peak MB"] = _peak(step, x, y, device) / 1e6
    row["finite"] = all(
        bool(parameter.grad.isfinite().all()) for parameter in (x, *step.parameters) if parameter.grad is not None
    )
    step.forget()
    row["kernels"] = _kernels(step, *batches[-2], device)
    step.forget()
    return row


def _peak(step: Step, x: Tensor, y: Tensor, device: torch.device) -> int:
    if device.type != "cuda":
        with Held(x, y, *step.parameters) as held:
            step.call(x, y)
        most = held.most
    else:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step.call(x, y)
        torch.cuda.synchronize()
        most = torch.cuda.max_memory_allocated() - before
    return most - sum(
        parameter.grad.untyped_storage().nbytes() for parameter in (x, *step.parameters) if parameter.grad is not None
    )


def _kernels(step: Step, x: Tensor, y: Tensor, device: torch.device) -> int:
    if device.type != "cuda":
        with Counted() as counted:
            step.call(x, y)
        return counted.names.total()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        step.call(x, y)
        torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in record.events() or ())


def ceilings(device: torch.device, side: int = SIDE) -> dict[str, float]:
    """Measure TFLOP/s of matrix products by type of the operands, and GB/s of a large copy (read plus written)."""
    found: dict[str, float] = {}
    for name, dtype in TYPES.items():
        pairs = [[torch.randn(side, side, device=device).to(dtype) for _ in range(2)] for _ in range(3)]
        with matmul_precision("tf32" if name == "tf32" else "ieee"):
            taken = milliseconds(lambda number, pairs=pairs: torch.mm(*pairs[number % 3]), device)
        found[name] = 2 * side**3 / statistics.median(taken) / 1e9
    source, target = (torch.randn(4 * side**2, device=device) for _ in range(2))
    taken = milliseconds(lambda _: target.copy_(source), device)
    found["copy GB/s"] = 2 * source.nbytes / statistics.median(taken) / 1e6
    return found


def roofline(batch: int, dim: int, classes: int, proxies: int, class_wise: bool, reached: Mapping[str, float]) -> float:
    """Compute the least milliseconds of a streamed step in half precision, from the measured rates of the machine.

    A class-wise loss takes three products, a data-wise one that keeps no scores four; the proxies are read in forward
    and backward, and their gradient is written.
    """
    products = (3 if class_wise else 4) * 2 * batch * dim * classes * proxies
    moved = 3 * 4 * dim * classes * proxies
    return max(products / reached["half"] / 1e9, moved / reached["copy GB/s"] / 1e6)
