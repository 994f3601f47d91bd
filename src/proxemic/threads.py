"""How many threads torch computes with on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int | None = None) -> Iterator[None]:
    """Compute with this many CPU threads in the block; the last digits depend on the number.

    ``None`` keeps their number, also where the block holds a library that sets it for the process, as numba does.

    >>> with cpu_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
