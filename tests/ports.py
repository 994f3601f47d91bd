"""Ports for processes that are to find each other."""

import itertools
import os
import socket
from collections.abc import Iterator
from functools import cache


@cache
def _ports() -> Iterator[int]:
    """Each worker of the tests has a hundred ports, which neither the system nor SLURM uses."""
    first = 10_000 + 100 * int(os.environ.get("PYTEST_WORKER", "0"))
    return itertools.cycle(range(first, first + 100))


def free_port() -> int:
    """Return a port on which nothing listens, nor will before the processes do."""
    for port in _ports():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError
