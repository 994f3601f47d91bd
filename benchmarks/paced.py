"""Let processes take their steps in turn, so that all see the same machine, each with its own allocator."""

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from proxemic.training import Callback, TrainingState


class Pace:
    """Count steps, report the time of each ``steps`` of them, and wait for the next turn."""

    def __init__(self, connection: Connection, steps: int, *, processor_time: bool) -> None:
        self.connection, self.steps, self.left = connection, steps, steps
        self.clock = time.process_time if processor_time else time.perf_counter
        self.start = self.clock()

    def step(self) -> None:
        """Count a step."""
        self.left -= 1
        if self.left == 0:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.connection.send(self.clock() - self.start)
            if not self.connection.recv():
                raise SystemExit
            self.left, self.start = self.steps, self.clock()


class Paced(Callback):
    """Count each step of a training with the `Pace` of this process."""

    pace: Pace

    def on_step_end(self, training: TrainingState, loss: Tensor) -> None:
        self.pace.step()


def alternate(
    loops: Mapping[str, Callable[[Pace], NoReturn]],
    steps: int,
    rounds: int,
    *,
    processor_time: bool,
    method: Literal["fork", "spawn"] = "fork",
) -> dict[str, float]:
    """Return the median seconds per step of each endless loop in its own process; the first steps do not count.

    Forked processes need no imports, but this process must not have used several threads of torch or a GPU before.
    """
    context: Any = multiprocessing.get_context(method)
    ours: dict[str, Connection] = {}
    processes: list[Any] = []
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    try:
        for name, loop in loops.items():
            ours[name], theirs = context.Pipe()
            processes.append(context.Process(target=_serve, args=(theirs, loop, steps, processor_time)))
            processes[-1].start()
            theirs.close()  # so that a failing process ends the connection
            ours[name].recv()
        for number in range(rounds):
            # In another order each time: a loop is slower after one that heats the processor.
            for name in random.Random(number).sample([*ours], len(ours)):
                ours[name].send(True)
                seconds[name].append(ours[name].recv() / steps)
    finally:
        for process, connection in zip(processes, ours.values(), strict=True):
            with suppress(BrokenPipeError):  # it has failed
                connection.send(False)
            process.join(60)
            process.kill()
    return {name: statistics.median(second) for name, second in seconds.items()}


def _serve(connection: Connection, loop: Callable[[Pace], NoReturn], steps: int, processor_time: bool) -> None:
    Paced.pace = Pace(connection, steps, processor_time=processor_time)
    loop(Paced.pace)
