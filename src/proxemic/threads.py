"""Set the number of CPU threads of torch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int | None = None) -> Iterator[None]:
    """Compute with this many CPU threads in the block; the last digits of results depend on their number.

    None keeps the number of threads. If a library in the block, such as numba, changes the number, it is restored.

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
