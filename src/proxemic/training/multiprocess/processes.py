"""The processes of a run: who they are, what they agree on, and what is said when one of them is lost."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from lightning import Trainer
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment

from proxemic.errors import Interrupted, UserError

__all__ = ["Processes", "ProcessesOfLightning", "join_processes", "keep_sigterm"]

_BEAT = 1.0  # seconds between two signs of life
_SILENT = 8.0  # seconds without one, after a collective has failed, that name a process lost
_WAITING = 3.0  # seconds in which the others end by themselves after one has failed
_HANGING = 35.0  # seconds without one that end the others, also where a collective, or the store, hangs
_JOINING = timedelta(minutes=5)  # for all processes to come
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_LONG = timedelta(days=7)  # for what takes as long as it takes, as the first reading of millions of images


@dataclass(frozen=True)
class Processes:
    """The processes of a run, each of which has one of these.

    Args:
        rank: Which this is, from 0; the first one reads first, writes, and speaks.
        world: How many they are.
        local_rank: Which this is of those on its machine, from 0.
        store: Where they leave each other word; None where there is one process.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    store: dist.Store | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Of each flag, whether it is set on any process; all wait for each other."""
        if self.world == 1:
            return flags
        joined = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(joined, dist.ReduceOp.MAX)
        return tuple(map(bool, joined.tolist()))

    def broadcast(self, text: str) -> str:
        """The text of the first process."""
        if self.world == 1:
            return text
        said = [text]
        dist.broadcast_object_list(said, device=torch.device("cpu"))
        return said[0]

    def all_gather(self, text: str) -> list[str]:
        """The texts of all, in the order of their ranks."""
        if self.world == 1:
            return [text]
        said: list[str] = [""] * self.world
        dist.all_gather_object(said, text)
        return said

    @contextmanager
    def main_process_first(self, what: str) -> Iterator[None]:
        """What the first process does before the others, which then find it done: to fill a cache, for one."""
        if self.store is None:
            yield
            return
        if not self.is_first:
            self.store.wait([what], _LONG)
        yield
        if self.is_first:
            self.store.set(what, "done")


class ProcessesOfLightning(LightningEnvironment):
    """Who they are to Lightning: each a machine of its own, with one device.

    It is to start none and to look for none, nor to take SLURM's signals: it would save in the middle of a step.
    """

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self.processes = processes

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self.processes.rank


def keep_sigterm(trainer: Trainer) -> None:
    """Keep Lightning from telling all processes of a SIGTERM that comes to one; ours agree on it themselves.

    It would do so by a collective in a handler of signals, which may meet another one, and by one before each step,
    which waits for a GPU, and takes what a handler of signals raises meanwhile for an error of its own.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    trainer._signal_connector._sigterm_notifier_fn = lambda *_: None  # type: ignore[method-assign]


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Be one of the processes that torchrun or srun has started; without them, be alone.

    An error leaves this as it is in the process that meets it first; the others end silently. Where one is gone
    without a word, killed for one, the others end within a minute, and one of them says which.

    Raises:
        UserError: If another process is lost, or does not come.
        SystemExit: If another process has said why the run ends.
    """
    if not _launched():
        yield Processes()
        return
    processes = _join()
    assert processes.store is not None
    life = _Life(processes, processes.store)
    # torchrun ends the others at once when one is lost, before they have said which.
    handler = signal.signal(signal.SIGTERM, life.on_sigterm)
    try:
        yield processes
    except BaseException as error:
        for number in _STOPPING:  # it stops
            signal.signal(number, signal.SIG_IGN)
        life.leave_to_caller()
        lost = life.lost() if _breaks_off(error) else None
        speaks = life.first_to_say()  # before the others may learn of it
        life.end("failed")
        if not speaks:
            raise SystemExit(2) from None
        if lost is not None:
            raise UserError(lost) from error
        raise
    # Not after an error: what a lost process leaves unfinished would be waited for.
    dist.destroy_process_group()
    life.end("done")
    signal.signal(signal.SIGTERM, handler)


def _launched() -> bool:
    """Whether torchrun or srun has started this process and others; of srun's variables those of torchrun are made."""
    given = os.environ
    if "TORCHELASTIC_RUN_ID" in given:
        return given["WORLD_SIZE"] != "1"
    # Not SLURM_NTASKS, which is the job's: in its script, or in a shell that srun has started, a process is alone.
    if given.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return False
    nodes = given.get("SLURM_STEP_NODELIST", given.get("SLURM_NODELIST", "127.0.0.1"))
    # All find the same port; another job, or step, on the same machine another one.
    port = 15_000 + (int(given.get("SLURM_JOB_ID", "0")) + 101 * int(given.get("SLURM_STEP_ID", "0"))) % 10_000
    given |= {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": given["SLURM_LOCALID"],
        "MASTER_ADDR": given.get("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(nodes)),
        "MASTER_PORT": given.get("MASTER_PORT", str(port)),
    }
    return True


def _join() -> Processes:
    rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=_JOINING))
        # Also with GPUs, what is agreed on between steps is of the CPU, and waits for none of them.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        word = dist.PrefixStore("proxemic", store)
        group = dist.PrefixStore("group", store.clone())  # a connection of its own
        dist.init_process_group(backend, store=group, rank=rank, world_size=world)
        # All are known before any goes on: one that ends at once would break off what another still joins, and one
        # that is lost at once would not be missed.
        word.set(f"name/{rank}", f"{os.getpid()} {_machine()} {socket.gethostname()}")
        word.set(f"beat/{rank}", "0")
        word.wait([f"beat/{other}" for other in range(world)], _JOINING)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        if rank > 0 and re.search("likely closed|reset by peer|Broken pipe", str(error)):
            raise SystemExit(2) from None  # this one has met the first, which says it
        raise UserError(
            f"Not all of {world} processes came to {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within "
            f"{_JOINING.seconds // 60} minutes, and stayed: start as many by torchrun or srun, on machines that reach "
            "each other."
        ) from error
    return Processes(rank, world, local_rank, word)


def _breaks_off(error: BaseException) -> bool:
    """Whether it comes from speaking with the others, one of which may be lost."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


class _Life:
    """Signs of life, and an eye on those of the others.

    A thread alone talks to the store, which may hang with the machine that holds it; another watches that one, and
    keeps the time.
    """

    def __init__(self, processes: Processes, store: dist.Store) -> None:
        self.processes = processes
        self._store, self._word = store.clone(), store.clone()  # connections of their own
        self._ended: str | None = None
        self._left_to_caller = False
        self._lock = threading.RLock()  # a signal may come while the caller holds it
        self._wake, self._told, self._left = threading.Event(), threading.Event(), threading.Event()
        self._seen: dict[int, tuple[str, float]] = {}
        self._names: dict[int, str] = {}
        self._now = self._looked = 0.0  # seconds in which this process ran: all may be paused, by Ctrl-Z for one
        works = (self._live, self._watch)
        self._threads = [threading.Thread(target=work, daemon=True, name="signs of life") for work in works]
        for thread in self._threads:
            thread.start()

    def on_sigterm(self, *_: object) -> None:
        """Say which process is lost, if that is why this one is to end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.leave_to_caller()
        if lost := self.lost():
            self._give_up(lost)
        raise Interrupted("Stopped at once by SIGTERM; what was not yet saved is lost.")

    def leave_to_caller(self) -> None:
        """From here on the caller says why the run ends, and is not cut short while it finds out."""
        with self._lock:
            self._left_to_caller = True

    def lost(self) -> str | None:
        """Wait until it is clear which processes are gone; None where another has said why it ended, or none is."""
        until = self._now + _SILENT + 4 * _BEAT
        while self._now < until:
            if silent := self._silent(_SILENT):
                return self._sentence(silent)
            if any(beat == "failed" for beat, _ in self._seen.values()):
                return None
            time.sleep(_BEAT / 4)
        return None

    def end(self, how: str) -> None:
        """Tell the others that this process ends, so that it is not missed, and let them go first if it must."""
        self._ended = how
        self._wake.set()
        self._told.wait(3 * _BEAT)
        until = self._now + 3 * _WAITING
        while self._keeps_store() and self._needed(how, until):
            time.sleep(_BEAT / 4)
        self._left.set()
        for thread in self._threads:
            thread.join(_BEAT)

    def first_to_say(self) -> bool:
        """Whether no other process has said yet why the run ends."""
        try:
            return self._word.add("said", 1) == 1
        except Exception:
            return self._speaks_without_store()

    def _live(self) -> None:
        """Give signs, look at those of the others, and end this process with them."""
        number = 1
        while not self._left.is_set():
            how = self._ended
            try:
                self._store.set(f"beat/{self.processes.rank}", how or str(number))
                # The store may go with the first process as soon as this one has said that it ends.
                if how is None or self._keeps_store():
                    self._look()
            except Exception:  # the store is gone, with the process or the launcher that held it
                if how is None:
                    self._give_up(f"{_KEEPER} is gone; {_HOW}", asked=False)
            if how is None:
                self._follow()
                self._wake.wait(_BEAT)
                number += 1
            else:
                self._told.set()
                if not self._keeps_store():
                    return
                self._left.wait(_BEAT / 4)

    def _follow(self) -> None:
        """End this process where another is lost, or has ended with an error."""
        with self._lock:
            if self._left_to_caller:
                return
            if silent := self._silent(_HANGING):
                self._give_up(self._sentence(silent))
            if self._has_failed():
                with suppress(Exception):  # the store may be gone by now
                    self._store.set(f"beat/{self.processes.rank}", "failed")
                os._exit(2)

    def _watch(self) -> None:
        """End this process where the store does not answer: its machine may be gone without a word."""
        before = time.monotonic()
        while not self._left.is_set():
            time.sleep(_BEAT / 4)
            after = time.monotonic()
            self._now += min(after - before, _BEAT)
            before = after
            if self._ended is None and self._now - self._looked > _HANGING:
                self._give_up(f"{_KEEPER} does not answer; {_HOW}", asked=False)

    def _look(self) -> None:
        others = [rank for rank in range(self.processes.world) if rank != self.processes.rank]
        beats, names = ([f"{what}/{rank}" for rank in others] for what in ("beat", "name"))
        now = self._now
        if not self._names:
            texts = self._store.multi_get(names)
            self._names = {rank: text.decode() for rank, text in zip(others, texts, strict=True)}
        latest = {rank: text.decode() for rank, text in zip(others, self._store.multi_get(beats), strict=True)}
        before = self._seen
        self._seen = {
            rank: before[rank] if rank in before and before[rank][0] == beat else (beat, now)
            for rank, beat in latest.items()
        }
        self._looked = self._now

    def _silent(self, seconds: float) -> list[int]:
        """The processes that have not ended, nor shown a sign of life for so long, or are known to be gone."""
        waited = {rank: self._now - since for rank, (beat, since) in self._seen.items() if beat.isdigit()}
        return [rank for rank, time_ in waited.items() if time_ > seconds or (time_ > 2 * _BEAT and self._gone(rank))]

    def _has_failed(self) -> bool:
        """Whether one has said why it ends, long enough ago for the others to have ended too."""
        waiting = _WAITING + 2 * _BEAT * self._keeps_store()
        return any(beat == "failed" and self._now - since > waiting for beat, since in self._seen.values())

    def _needed(self, how: str, until: float) -> bool:
        """Whether another may still ask the store: after an error, one that has not followed by then hangs."""
        silent = self._silent(_HANGING)
        stays = not self._seen or any(beat.isdigit() and rank not in silent for rank, (beat, _) in self._seen.items())
        return stays and (how == "done" or self._now < until)

    def _gone(self, rank: int) -> bool:
        """Whether it is known to be: of this machine, that its process is not there."""
        process, machine, _ = self._names[rank].split(" ", 2)
        return machine == _machine() and not _exists(int(process))

    def _sentence(self, ranks: list[int]) -> str:
        names = {rank: self._names[rank].split(" ", 2) for rank in ranks}
        who = ", ".join(f"rank {rank} (process {process} on {host})" for rank, (process, _, host) in names.items())
        were = "was" if len(ranks) == 1 else "were"
        return f"{who} {were} lost in the middle of the run, killed perhaps, for want of memory for one; {_HOW}"

    def _give_up(self, sentence: str, *, asked: bool = True) -> NoReturn:
        """End at once, saying why if no other process does."""
        if self.first_to_say() if asked else self._speaks_without_store():
            os.write(2, f"proxemic: {sentence}\n".encode())
        os._exit(2)

    def _keeps_store(self) -> bool:
        return self.processes.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _speaks_without_store(self) -> bool:
        return self.processes.rank == (0 if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 1)


def _machine() -> str:
    """Where process numbers mean the same: a machine since its start, and a space of process numbers in it."""
    parts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text(),
        lambda: str(Path("/proc/self/ns/pid").readlink()),
    ):
        try:
            parts.append(read().strip())
        except OSError:  # not Linux
            continue
    return "/".join(parts)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_KEEPER = "The process that keeps the others together (rank 0, or torchrun on its machine)"
_HOW = "start the run again by the same launcher with proxemic train --resume and its directory."
