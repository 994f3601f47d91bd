"""Matrix products in the precision of their operands."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


@contextmanager
def matmul_precision(wanted: Literal["ieee", "tf32"] | None) -> Iterator[None]:
    """Matrix products of float32 in full precision, or on a GPU in TF32; ``None``: as the process allows.

    So does what `torch.compile` compiles, which takes the precision of the process when it runs.
    """
    if wanted is None or torch.compiler.is_compiling():
        yield
        return
    cpu, gpu = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]
    allowed = [each.fp32_precision for each in (cpu, gpu)]
    try:
        cpu.fp32_precision, gpu.fp32_precision = "ieee", wanted
        yield
    finally:
        cpu.fp32_precision, gpu.fp32_precision = allowed
