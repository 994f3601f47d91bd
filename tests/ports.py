"""Ports for processes that are to find each other."""

import itertools
import os
import socket

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Each test worker has a hundred ports, which neither the system nor SLURM uses.
_PORTS = itertools.cycle(range(10_000 + 100 * _WORKER, 10_100 + 100 * _WORKER))


def free_port() -> int:
    """Return a port on which nothing listens, nor will before the processes do."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError
