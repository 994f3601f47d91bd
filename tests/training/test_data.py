"""The batches of a run."""

from pathlib import Path

import pytest

import warm
from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.recipes.reader import read_recipe
from proxemic.training.data import TrainingData

WORKER = """
import multiprocessing, os, signal
from torch.utils.data import DataLoader
from proxemic.runs.workers import worker_settings

multiprocessing.set_start_method("forkserver", force=True)  # as Python 3.14 does of itself
batches = iter(DataLoader(range(100), **worker_settings(1)))
next(batches)
(worker,) = batches._workers
os.system(f"kill -TERM {worker.pid}")  # another process, not its own parent
print(len([next(batches) for _ in range(50)]), flush=True)
worker.terminate()
worker.join(60)
print(worker.exitcode, flush=True)
os._exit(0)  # whatever torch still has to say of it
"""


ENDED_AT_ONCE = """
import signal, sys, time
from proxemic.runs.workers import leave_signals, worker_settings

signal.signal(signal.SIGTERM, lambda *_: None)  # as the training does, which saves first

def work():
    time.sleep(0.5)
    leave_signals()
    time.sleep(60)

worker = worker_settings(1)["multiprocessing_context"].Process(target=work, daemon=True)
worker.start()
worker.terminate()
worker.join(30)
print(worker.exitcode, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
worker.kill()
"""


def test_what_loads_images_ends_with_the_training_even_while_it_starts() -> None:
    """A training that fails in its first batch ends processes that have not begun; it waited for them for ever."""
    done = warm.run("-c", ENDED_AT_ONCE)
    assert done.stdout.split() == ["0"], done.stderr


def test_what_loads_images_leaves_sigterm_to_the_training() -> None:
    """SLURM sends SIGTERM to every process of a step when the time is up."""
    done = warm.run("-c", WORKER)
    assert done.stdout.split() == ["50", "0"], done.stderr


def test_batches_that_processes_cannot_share_are_refused(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images"))
    cases = {
        "batches.size is 1 in effect, but 2 processes share each batch": ["--batches.size", "1"],
        "batches.micro_batches is 3, but each process has only 2 of the 5 images of a batch": [
            *["--batches.size", "5", "--batches.micro_batches", "3"]
        ],
        "asks for 60/2 = 30 classes a batch, but there are ": ["--batches.size=60", "--batches.images_per_class=2"],
    }
    for words, flags in cases.items():
        recipe = read_recipe(path, flags).recipe
        with pytest.raises(UserError, match=words):
            TrainingData(recipe.load().train, recipe, rank=0, world=2)
