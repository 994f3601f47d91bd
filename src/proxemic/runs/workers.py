"""Set up the processes that load images, and explain their errors."""

import multiprocessing.context
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from proxemic.errors import UserError

NO_SHARED_MEMORY = (
    "The processes that load images need more shared memory than /dev/shm has: give the container more (docker run "
    "--shm-size 2g), or load without them (batches.workers 0)"
)


def worker_settings(workers: int, device: torch.device | None = None) -> dict[str, Any]:
    """Return the arguments of a `DataLoader` with this many processes, for a device."""
    # From Python 3.14 on, a server would fork them: it starts slowly, and a signal to all processes of a job ends it.
    forks = workers and sys.platform == "linux"
    return {
        "num_workers": workers,
        "worker_init_fn": leave_signals,
        "multiprocessing_context": _Forks() if forks else None,
        "pin_memory": device is not None and device.type == "cuda",
    }


@contextmanager
def shared_memory_errors() -> Iterator[None]:
    """Turn a `DataLoader`'s error about exhausted shared memory into a `UserError`."""
    try:
        yield
    except RuntimeError as error:
        if "shared memory" not in str(error):
            raise
        raise UserError(f"{NO_SHARED_MEMORY}.") from error


if sys.platform == "linux":

    class _Fork(multiprocessing.context.ForkProcess):
        """A process that begins with SIGTERM blocked: until `leave_signals`, the training's handler would lose it."""

        def start(self) -> None:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            try:
                super().start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    class _Forks(multiprocessing.context.ForkContext):
        Process = _Fork


def leave_signals(_: int = 0) -> None:
    """Ignore Ctrl-C, and SIGTERM unless the training process sends it: terminals and SLURM signal workers, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # a handler does not know the sender of a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_training, daemon=True).start()


def _end_with_training() -> None:
    assert sys.platform == "linux"
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
