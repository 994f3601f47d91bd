"""Two processes that talk to each other, as a user's run on two GPUs does, but on the CPU."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import warm
from ports import free_port


def run_processes(program: Path, folder: Path, world: int = 2) -> list[dict[str, Any]]:
    """Run a program in `world` processes; each writes what it found to `folder/RANK.json` (see `write`)."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "NODE_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        warm.Process(program, folder, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]
    try:
        outputs = ["\n".join(process.communicate(timeout=200)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def write(found: dict[str, Any]) -> None:
    """Leave what this process found; floats come back as they are."""
    (Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
