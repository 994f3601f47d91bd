"""`proxemic` in several processes, as torchrun starts it, without the seconds that torchrun and imports take."""

import csv
import os
import random
import signal
import subprocess
import time
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist

import warm
from command_line import TERMINAL
from ports import free_port

COMMAND = ("-m", "proxemic")
SLOW_SGD = [  # whose steps are so small that rounding does not grow
    "--optim.optimizer",
    '{"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.9}}',
    "--optim.lr",
    "0.001",
    "--optim.loss_lr",
    "0.01",
    "--model.freeze_batch_norm",  # on CPUs, each process uses the statistics of its part of the batch
    "true",
]
TWO_PHASES = [  # nothing is better by so much, so that each ends after two epochs, of the three that it may have
    *SLOW_SGD,
    *("--second_phase.epochs", "3", "--second_phase.optim.lr", "0.0005", "--training.epochs", "6"),
    *("--training.until_plateau.patience", "1", "--training.until_plateau.min_improvement", "1"),
    *("--training.start_proxies", "k_means", "--training.spread_after", "1"),
]
# Variables of a job with 8 tasks, although srun has not started this process.
JOB_SCRIPT = {
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "127.0.0.1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
# What torchrun holds for the processes of a run to find each other: here the runs that were started last.
_STORES = deque[dist.TCPStore](maxlen=8)


def start_together(
    world: int, *words: str | Path, program: tuple[str, ...] = COMMAND, slurm: bool = False
) -> list[warm.Process]:
    """Start a command on ``world`` processes."""
    if slurm:
        return _start_by_slurm(world, *program, *words)
    _STORES.append(dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False))
    shared = {
        **TERMINAL,
        "TORCHELASTIC_RUN_ID": "tests",  # by which torch and Lightning know torchrun
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_STORES[-1].port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    return [
        warm.Process(*program, *words, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]


def _start_by_slurm(world: int, *words: str | Path) -> list[warm.Process]:
    shared = {
        **TERMINAL,
        "SLURM_NTASKS": "8",  # of the job, of which this is a step
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_JOB_NODELIST": "127.0.0.1",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_ID": str(random.randrange(10_000)),  # by which a port is chosen
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "interactive",  # as salloc has it; Lightning takes its processes to be each alone
        "OMP_NUM_THREADS": "1",
    }
    return [
        warm.Process(*words, environment={**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        for rank in range(world)
    ]


def finish(processes: list[warm.Process], timeout: float = 120) -> list[subprocess.CompletedProcess[str]]:
    """Wait for all of them."""
    done = []
    try:
        for process in processes:
            out, err = process.communicate(timeout)
            assert process.returncode is not None
            done.append(subprocess.CompletedProcess(process.arguments, process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return done


def proxemic_together(world: int, *words: str | Path) -> list[subprocess.CompletedProcess[str]]:
    """Run a command on ``world`` processes to its end."""
    return finish(start_together(world, *words))


def history(run: Path) -> list[dict[str, str]]:
    """A run's history, without what depends on the clock."""
    with (run / "history.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def losses(run: Path) -> torch.Tensor:
    return torch.tensor([float(row["loss"]) for row in history(run)], dtype=torch.float64)


def assert_same(run: Path, expected: Path) -> None:
    """The two runs ended with the same bytes."""
    for name in ("model.safetensors", "loss.safetensors", "metrics.json"):
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name
    assert history(run) == history(expected)


def wait_for_checkpoint(processes: list[warm.Process], run: Path) -> None:
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)


def interrupt_after(processes: list[warm.Process], run: Path, number: int = signal.SIGINT) -> None:
    """Send a signal to all processes, and to what loads their images, once the first step is saved."""
    wait_for_checkpoint(processes, run)
    for process in processes:
        os.killpg(process.pid, number)
