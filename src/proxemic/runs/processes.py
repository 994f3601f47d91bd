"""Connect the processes of a run, and let them communicate."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from proxemic.errors import UserError

_JOINING = timedelta(minutes=5)  # for all processes to come
_COLLECTIVES: timedelta | None = None  # for a collective; None takes torch's own: 30 minutes of gloo, 10 of NCCL
_READING = timedelta(days=7)  # for steps of unknown length, such as the first reading of millions of images


@dataclass(frozen=True)
class Processes:
    """One process of a run, and its communication with the others.

    Args:
        rank: The rank of this process, from 0. The first process reads before the others, and it alone writes and
            reports.
        world: The number of processes.
        local_rank: The rank of this process among those on its machine, from 0.
        reading: The group whose collectives wait for the first reading of the images; None for a single process.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    reading: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if self.world > 1 else None

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set on any process; all processes must call this."""
        if self.world == 1:
            return flags
        joined = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(joined, dist.ReduceOp.MAX)
        return tuple(map(bool, joined.tolist()))

    def broadcast(self, text: str) -> str:
        """Return the text of the first process on every process."""
        if self.world == 1:
            return text
        texts = [text]
        dist.broadcast_object_list(texts, device=torch.device("cpu"))
        return texts[0]

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all processes, in the order of their ranks."""
        if self.world == 1:
            return [text]
        texts: list[str] = [""] * self.world
        dist.all_gather_object(texts, text)
        return texts

    def wait(self) -> None:
        """Wait for all processes, without a limit of time."""
        if self.reading is not None:
            dist.barrier(self.reading)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block on the first process before the others, which then find, for example, a filled cache."""
        if self.reading is not None and not self.is_first:
            dist.barrier(self.reading)
        yield
        if self.reading is not None and self.is_first:
            dist.barrier(self.reading)


@contextmanager
def join_processes(
    again: str = "Start the run again by the same launcher with proxemic train --resume and its directory.",
) -> Iterator[Processes]:
    """Connect to the other processes that torchrun or srun has started, if any.

    Errors are reported to torchrun, which names the process that failed first and ends the others. If another process
    is killed, or hangs for longer than a collective waits, this process ends with an error that is not reported;
    ``again`` tells the user how to continue. If torchrun itself is killed, its processes stop.

    Raises:
        UserError: If another process is lost or does not connect.
    """
    if not _launched():
        yield Processes()
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _end_with_launcher()
    processes = _join()
    try:
        yield processes
    except Exception as error:
        # A lost connection is not reported: torchrun may notice later why it was lost, and would name this process.
        if not is_lost_connection(error):
            get_error_handler().record_exception(error)
            raise
        reason = re.sub(r"\[\S*gloo/\S*\] ", "", str(error)).split(". ")[0]
        raise UserError(
            f"Another process of the run ended, or does not answer ({reason}): the output of torchrun or srun names "
            f"its rank. {again}"
        ) from error
    # Not after an error, as it would wait for a lost process.
    dist.destroy_process_group()


def _launched() -> bool:
    """Return whether torchrun or srun has started several processes; set torchrun's variables from srun's."""
    given = os.environ
    if "TORCHELASTIC_RUN_ID" in given:
        return given["WORLD_SIZE"] != "1"
    # Not SLURM_NTASKS, which counts the tasks of the job: in its script or an interactive shell, there is one process.
    if given.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return False
    nodes = given.get("SLURM_STEP_NODELIST", given.get("SLURM_NODELIST", "127.0.0.1"))
    # The same port on all processes, but another one for another job or step on the same machine.
    port = 15_000 + (int(given.get("SLURM_JOB_ID", "0")) + 101 * int(given.get("SLURM_STEP_ID", "0"))) % 10_000
    given |= {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": given["SLURM_LOCALID"],
        "MASTER_ADDR": given.get("MASTER_ADDR", first_node(nodes)),
        "MASTER_PORT": given.get("MASTER_PORT", str(port)),
    }
    return True


def _end_with_launcher() -> None:
    """Stop this process when torchrun is killed, because torchrun can then no longer do it."""
    launcher = os.getppid()

    def wait() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        while True:  # a training saves when it is asked for the first time, and stops at once the second time
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    threading.Thread(target=wait, daemon=True).start()


def first_node(nodes: str) -> str:
    """Return the first node of a list in SLURM's notation.

    >>> first_node("gpu-[003-005,011],x1"), first_node("alpha,beta")
    ('gpu-003', 'alpha')
    """
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).split(",")[0]


def _join() -> Processes:
    rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=_JOINING))
        # Even with GPUs, processes communicate between steps on the CPU, without waiting for a GPU.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_COLLECTIVES)
        reading = dist.new_group(timeout=_READING, backend="gloo")
        assert isinstance(reading, dist.ProcessGroup)
        # If one failed at once after this, others still waiting here would think that it never connected.
        dist.barrier(group=reading)
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise UserError(
            f"Not all {world} processes connected to {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within "
            f"{_JOINING.seconds // 60} minutes, and stayed connected: start {world} processes by torchrun or srun, on "
            "machines that reach each other."
        ) from error
    return Processes(rank, world, local_rank, reading)


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error comes from the communication with another process, which may be lost."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError | OSError) and "gloo/" in str(error))
