"""How many CPU threads a run computes with: the order of its sums, and so its last digits, depend on it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Have torch compute with this many CPU threads while the block runs; None leaves the number as it is.

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
