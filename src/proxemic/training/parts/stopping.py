"""Stops a training on a signal."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from proxemic.errors import Interrupted
from proxemic.runs.directory import RunDirectory
from proxemic.runs.processes import Processes


class Signals:
    """Treats Ctrl-C, SIGTERM and SIGUSR1 (which SLURM can send before its time limit) as a request to save and stop.

    Attributes:
        stopping: Whether this process has received one; all processes agree on it after each step.
    """

    def __init__(self, run: RunDirectory, processes: Processes) -> None:
        self.run, self.processes = run, processes
        self.stopping = False
        self._process, self._left = os.getpid(), False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Handle signals while the block runs.

        Enter it before the data workers start: SLURM (``--signal=USR1@90``) also sends them SIGUSR1, which would end
        them.
        """
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGUSR1"):  # not on Windows
            numbers.append(signal.SIGUSR1)
        handlers = {number: signal.signal(number, self._stop) for number in numbers}
        try:
            yield
        except BaseException:
            self._left = True
            raise
        finally:
            for number, handler in handlers.items():
                # The signal may reach another process first, and all have stopped before it comes to this one. Where
                # another process is lost, torchrun sends SIGTERM, which must not end this one before it has said so.
                stopped = self._left and self.processes.world > 1
                signal.signal(number, signal.SIG_IGN if stopped else handler)

    def leave(self, where: str) -> NoReturn:
        """Raise `Interrupted`, after everything is saved."""
        raise Interrupted(
            f"Stopped {where}, everything is saved: continue with proxemic train --resume {self.run.path}"
        )

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process or self._left:
            return  # a process that loads images, or a signal that comes too late
        if self.stopping:
            raise Interrupted(
                f"Stopped at once: continue from the last checkpoint with proxemic train --resume {self.run.path}"
            )
        self.stopping = True
        if not self.processes.is_first or (number == signal.SIGTERM and self.processes.world > 1):
            return  # torchrun also sends SIGTERM when another process is lost: nothing will be saved then
        # Not print: the signal may interrupt a print, which cannot be entered again.
        os.write(1, b"\nStopping: saving first; once more stops at once.\n")
