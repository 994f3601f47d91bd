"""Set the precision of matrix products and convolutions."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

_NOTHING: AbstractContextManager[None] = nullcontext()


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Turn off automatic mixed precision on a kind of device during the block."""
    inside = torch.compiler.is_compiling() or torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if inside else _NOTHING


def matmul_precision(wanted: Literal["ieee", "tf32"] | None) -> AbstractContextManager[None]:
    """Compute float32 matrix products in full precision, or on a GPU in TF32; None keeps the process's setting.

    Compiled code always uses the process's setting.
    """
    return _NOTHING if wanted is None or torch.compiler.is_compiling() else _matmul_precision(wanted)


@contextmanager
def _matmul_precision(wanted: Literal["ieee", "tf32"]) -> Iterator[None]:
    cpu, gpu = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]
    allowed = [value.fp32_precision for value in (cpu, gpu)]
    try:
        cpu.fp32_precision, gpu.fp32_precision = "ieee", wanted
        yield
    finally:
        cpu.fp32_precision, gpu.fp32_precision = allowed


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 matrix products and convolutions in float32; by default, GPUs compute convolutions in TF32."""
    cudnn: Any = torch.backends.cudnn
    allowed = [value.fp32_precision for value in (cudnn.conv, cudnn.rnn)]
    with matmul_precision("ieee"):
        try:
            cudnn.allow_tf32 = False  # otherwise torch complains that this older flag contradicts the newer ones
            cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "ieee"
            yield
        finally:
            cudnn.allow_tf32 = "tf32" in allowed
            cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = allowed
