"""Worker processes that serve one socket together."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from multiprocessing import resource_tracker

from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from proxemic.errors import UserError

_MINUTE = 60.0
_MOST_ENDS = 3  # of each worker within a minute


def run_workers(config: Config, listener: socket.socket) -> None:
    """Run the workers of a configuration until Ctrl-C or SIGTERM, and restart workers that end.

    Raises:
        UserError: If a worker cannot open the gallery, or workers end again and again.
    """
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    supervisor = _Supervisor(config, [listener])
    mask = None
    try:
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            # A terminal sends Ctrl-C to all processes. Workers inherit its blocking, and this process ends them.
            resource_tracker.ensure_running()  # otherwise the first worker starts it, which unblocks Ctrl-C
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        supervisor.run()
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    if supervisor.failed or any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise UserError(
            "The worker processes end before they serve. Either a line above says why, or memory runs out: start fewer "
            "--workers."
        )


def end_with_parent() -> None:
    """End this worker when its parent has ended, even by ``kill -9``, because the worker would keep the port."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


class _Supervisor(Multiprocess):
    """Give up when workers end again and again, which uvicorn would restart forever, and handle a blocked Ctrl-C.

    Attributes:
        failed: Whether it gave up.
    """

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self.failed = False
        self._ends: list[float] = []

    def handle_signals(self) -> None:
        """Handle the signals that have arrived."""
        if hasattr(signal, "sigpending") and signal.SIGINT in signal.sigpending():
            self.handle_int()
        super().handle_signals()

    def keep_subprocess_alive(self) -> None:
        """Restart workers that have ended."""
        before = {*self.processes}
        super().keep_subprocess_alive()
        now = time.monotonic()
        self._ends = [end for end in self._ends if now - end < _MINUTE] + [now] * len(before - {*self.processes})
        if len(self._ends) > _MOST_ENDS * self.processes_num:
            self.failed = True
            self.should_exit.set()
