"""How processes are started, stopped and paused, by SLURM above all, and what they are told to do alike."""

import importlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import warm
from command_line import TERMINAL, Here, assert_refused
from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.losses import ProxyAnchorLoss
from proxemic.models import ModelConfig, build_model
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.training.module import EmbeddingTask
from proxemic.training.multiprocess.processes import Processes, join_processes
from together import finish, start_together

training = importlib.import_module("proxemic.training.train")  # the module: the package has the function by this name


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launching")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


def wait_for_checkpoint(processes: list[warm.Process], run: Path) -> None:
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)


# Of the variables of a job that asks for 8 tasks; srun has not started this one.
JOB_SCRIPT = {
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "127.0.0.1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}


@pytest.mark.parametrize("world", [1, 2])
def test_slurm_asks_before_the_time_is_up(recipe: Path, tmp_path: Path, world: int) -> None:
    run = tmp_path / "run"
    words = ["train", "--recipe", recipe, "--out", run, "--training.epochs", "1000", "--batches.workers", "1"]
    if world == 1:
        processes = [warm.Process("-m", "proxemic.cli", *words, environment=TERMINAL | JOB_SCRIPT)]
    else:
        processes = start_together(world, *words, "--proxies", "sharded", slurm=True)
    wait_for_checkpoint(processes, run)
    for process in processes:
        os.killpg(process.pid, signal.SIGUSR1)  # as SLURM does: what loads the images has it too
    results = finish(processes)
    assert [result.returncode for result in results] == [2] * world, results
    (said,) = [line for result in results for line in result.stderr.splitlines()]
    assert said.endswith(f"everything is saved: continue with proxemic train --resume {run}")
    assert sum(result.stdout.count("Stopping: saving first") for result in results) == 1
    assert not list(run.glob("hpc_ckpt*"))


WORKER = """
import os, signal
from torch.utils.data import DataLoader
from proxemic.training.data_module import leave_signals

batches = iter(DataLoader(range(100), num_workers=1, worker_init_fn=leave_signals))
next(batches)
(worker,) = batches._workers
os.system(f"kill -TERM {worker.pid}")  # another process, not its own parent
print(len([next(batches) for _ in range(50)]), flush=True)
worker.terminate()
worker.join(60)
print(worker.exitcode, flush=True)
os._exit(0)  # whatever torch still has to say of it
"""


def test_what_loads_images_leaves_sigterm_to_the_training() -> None:
    """SLURM sends it to every process of a step when the time is up."""
    done = warm.run("-c", WORKER)
    assert done.stdout.split() == ["50", "0"], done.stderr


def test_without_srun_a_process_of_a_job_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB_SCRIPT.items():
        monkeypatch.setenv(name, value)
    with join_processes() as processes:
        assert processes == Processes()


def test_where_slurm_is_installed_nothing_is_said_of_it(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    here = Here(capsys, monkeypatch)
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", "--training.epochs", "1")
    assert (result.returncode, result.stderr) == (0, "")


PAUSED = """
import sys, time
from pathlib import Path
import proxemic.training.multiprocess.processes as several

several._BEAT, several._HANGING = 0.25, 3.0
begun, done = map(Path, sys.argv[1:])
with several.join_processes() as processes:
    processes.any(False)
    begun.touch()
    while not processes.any(done.exists())[0]:
        time.sleep(0.1)
"""


def test_a_run_that_was_paused_goes_on(tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    processes = start_together(2, begun, done, program=("-c", PAUSED))
    while not begun.exists():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)
    for number, seconds in ((signal.SIGSTOP, 4), (signal.SIGCONT, 1)):
        for process in processes:
            os.kill(process.pid, number)
        time.sleep(seconds)
    done.touch()
    results = finish(processes)
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 2, results


KILLED = """
import os, signal, time
import proxemic.training.multiprocess.processes as several

several._SILENT = several._HANGING = 1000.0  # its silence says nothing
live = several._Life._live

def live_late(life):
    time.sleep(5 * life.processes.rank)  # it is gone before its first sign of life
    live(life)

several._Life._live = live_late
with several.join_processes() as processes:
    processes.any(False)
    if processes.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    processes.any(False)
"""


def test_a_process_of_this_machine_that_is_not_there_is_missed_at_once() -> None:
    first, _ = finish(start_together(2, program=("-c", KILLED)), timeout=60)
    assert "rank 1 (process" in first.stderr


def test_what_loads_images_is_killed(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["--training.epochs", "1000", "--batches.workers", "1"]
    processes = start_together(2, "train", "--recipe", recipe, "--out", run, *flags)
    wait_for_checkpoint(processes, run)
    children = Path(f"/proc/{processes[1].pid}/task/{processes[1].pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    results = finish(processes)
    assert [result.returncode for result in results] == [2, 2], results
    speaker = next(result for result in results if result.stderr)
    assert_refused(speaker, ["that loads images was killed", "lower batches.workers", f"proxemic train --resume {run}"])
    assert not "".join(result.stderr for result in results if result is not speaker)


ALIKE = """
import os, sys
from pathlib import Path
import proxemic.cli.train as command
from proxemic.cli import main

rank = os.environ["RANK"]
command.default_out = lambda _: Path(f"run-{rank}")  # by the clock, the second may be another
minutes = "0" if rank == "1" else "1000"
sys.exit(main(["train", "--recipe", sys.argv[1], "--training.epochs", "1", "--training.checkpoint_minutes", minutes]))
"""


def test_processes_whose_clocks_differ_write_alike(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = finish(start_together(2, recipe, program=("-c", ALIKE)))
    assert [result.returncode for result in results] == [0, 0], results
    assert [path.name for path in tmp_path.iterdir()] == ["run-0"]


def test_the_network_draws_on_each_process_its_own() -> None:
    model = build_model(ModelConfig(backbone="convnet", embedding_size=4, width=4))
    draws = []
    for rank in (0, 1, 0):
        task = EmbeddingTask(
            model,
            ProxyAnchorLoss(3, 4),
            read_recipe(find_recipe("glyphs-small")).recipe.optim,
            7,
            processes=Processes(rank, 2),
        )
        task.on_train_batch_start(None, 0)
        draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled, but CUDA is not available")
@pytest.mark.parametrize(
    ("world", "layout", "apart"), [(2, "sharded", True), (2, "replicated", False), (1, "sharded", False)]
)
def test_the_scale_of_half_precision_is_one_where_gradients_differ(world: int, layout: str, apart: bool) -> None:
    flags = ["--proxies", layout, "--training.precision", "16-mixed"]
    found = read_recipe(find_recipe("glyphs-small"), flags).recipe
    scalers = [
        each.scaler for each in training._plugins(found, Processes(0, world)) if isinstance(each, MixedPrecision)
    ]
    assert [type(scaler) for scaler in scalers] == [ShardedGradScaler] * apart


@pytest.mark.parametrize(
    ("seen", "launcher", "number"),
    [(8, "torchrun", 3), (8, "srun", 3), (1, "srun", 0), (2, "srun", None), (1, "torchrun", None)],
)
def test_each_process_takes_its_own_gpu(
    seen: int, launcher: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    if launcher == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "tests")
    processes = Processes(rank=11, world=16, local_rank=3)
    if number is None:
        with pytest.raises(UserError, match=f"More than {seen} processes were started on a machine .* start one a GPU"):
            training._gpu(processes)
    else:
        assert training._gpu(processes) == number
