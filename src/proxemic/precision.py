"""Matrix products in the precision of their operands."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(wanted: bool = True) -> Iterator[None]:
    """Matrix products of float32 in float32, whatever the process allows for speed, such as TF32."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul) if wanted else ()  # type: ignore[attr-defined]
    allowed = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, allowed, strict=True):
            backend.fp32_precision = precision
