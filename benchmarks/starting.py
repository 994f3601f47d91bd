"""Processor time of a training up to its first step, and of short commands, beside importing torch alone.

    python benchmarks/starting.py              # ten runs of each; a few minutes
    python benchmarks/starting.py --smoke      # seconds

Each command is a process of its own; the commands take turns, and the first turn, which compiles modules and renders
the characters of the recipe, does not count. The figures are medians of user and system time with one thread.
"""

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from measure import command, print_header, print_row
from proxemic.training import Callback, TrainingState

_CALLBACKS = "[{class_path: starting.LeavesAfterOneStep}]"


class LeavesAfterOneStep(Callback):
    """Ends the process after the first step."""

    def on_step_end(self, training: TrainingState, loss: Tensor) -> None:
        os._exit(0)


def processor_time(words: list[str], folder: str) -> float:
    """Run a command; return the seconds of user and system time that it took."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(*, recipe: str = "glyphs-small", runs: int = 10, smoke: bool = False) -> None:
    """Print the processor time of each command, and what the first step needs beyond importing torch."""
    reference, training = "import torch, torchvision.transforms.v2", f"train --recipe {recipe}, first step"
    seconds: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        for turn in range(1 if smoke else 0, 2 if smoke else runs + 1):
            train = ["train", "--recipe", recipe, "--training.callbacks", _CALLBACKS, "--out", str(turn)]
            commands = {
                reference: ["-c", reference],
                training: ["-m", "proxemic", *train],
                "--help": ["-m", "proxemic", "--help"],
                "recipes list": ["-m", "proxemic", "recipes", "list"],
            }
            for name, words in commands.items():
                taken = processor_time(words, folder)
                if turn:
                    seconds.setdefault(name, []).append(taken)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print_header("command", "seconds")
    for name, median in medians.items():
        print_row(name, f"{median:.2f}")
    print_row("first step - import", f"{medians[training] - medians[reference]:.2f}")


if __name__ == "__main__":
    command(main)
