"""The processes that load images."""

import os
import signal
import sys
import threading
from typing import Any


def worker_settings(workers: int) -> dict[str, Any]:
    """Arguments of a `DataLoader` whose images so many processes load."""
    # From Python 3.14 on a server would fork them: it starts slowly, and a signal to all processes of a job ends it.
    method = "fork" if workers and sys.platform == "linux" else None
    return {"num_workers": workers, "worker_init_fn": leave_signals, "multiprocessing_context": method}


def leave_signals(_: int = 0) -> None:
    """Ignore Ctrl-C, and SIGTERM unless the training process sends it: a terminal, or SLURM, signals workers, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # a handler does not learn who sent it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_training, daemon=True).start()


def _end_with_training() -> None:
    assert sys.platform == "linux"
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
