"""`proxemic` in several processes, as torchrun starts it, without the seconds that torchrun and imports take."""

import random
import subprocess
from pathlib import Path

import warm
from command_line import TERMINAL
from ports import free_port

COMMAND = ("-m", "proxemic.cli")


def start_together(
    world: int, *words: str | Path, program: tuple[str, ...] = COMMAND, slurm: bool = False
) -> list[warm.Process]:
    """Start a command on ``world`` processes."""
    if slurm:
        return _start_by_slurm(world, *words)
    shared = {
        **TERMINAL,
        "TORCHELASTIC_RUN_ID": "tests",  # by which torch and Lightning know torchrun
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
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
        warm.Process(*COMMAND, *words, environment={**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
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
