"""Runs of several processes: equal to those of one, whole after a kill, and clear about what went wrong."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import warm
from command_line import ENVIRONMENT, assert_refused
from images import write_folder, write_recipe
from processes import run_processes
from proxemic.errors import UserError
from proxemic.training.multiprocess.sync_batch_norm import JoinedBatchNorm
from together import finish, proxemic_together, start_together

SLOW_SGD = [  # whose steps are so small that rounding does not grow
    "--optim.optimizer",
    '{"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.9}}',
    "--optim.lr",
    "0.001",
    "--optim.loss_lr",
    "0.01",
]
TWO_PHASES = [  # nothing is better by so much, so that each ends after two epochs, of the three that it may have
    *SLOW_SGD,
    *("--second_phase.epochs", "3", "--second_phase.optim.lr", "0.0005", "--training.epochs", "6"),
    *("--training.until_plateau.patience", "1", "--training.until_plateau.min_improvement", "1"),
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


@pytest.fixture(scope="module")
def together(recipe: Path) -> Path:
    """A run of two processes, with sharded proxies."""
    run = recipe.parent / "together"
    results = proxemic_together(2, "train", "--recipe", recipe, "--out", run, "--proxies", "sharded", *TWO_PHASES)
    assert [result.returncode for result in results] == [0, 0], results
    assert "Wrote" in results[0].stdout
    assert results[1].stdout == ""
    return run


def history(run: Path) -> list[dict[str, str]]:
    with (run / "history.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def losses(run: Path) -> torch.Tensor:
    return torch.tensor([float(row["loss"]) for row in history(run)], dtype=torch.float64)


def assert_same(run: Path, expected: Path) -> None:
    for name in ("model.safetensors", "loss.safetensors", "metrics.json"):
        assert (run / name).read_bytes() == (expected / name).read_bytes(), name
    assert history(run) == history(expected)


def test_sharded_proxies_end_where_replicated_ones_do_and_near_those_of_one_process(
    recipe: Path, together: Path, tmp_path: Path
) -> None:
    flags = ["train", "--recipe", recipe, *TWO_PHASES]
    replicated = proxemic_together(2, *flags, "--out", tmp_path / "replicated")
    assert [result.returncode for result in replicated] == [0, 0], replicated
    assert_same(tmp_path / "replicated", together)
    (alone,) = proxemic_together(1, *flags, "--out", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    torch.testing.assert_close(losses(together), losses(tmp_path / "alone"), rtol=1e-4, atol=0)
    assert [row["phase"] for row in history(together)] == ["1", "1", "2", "2"]  # at their plateaus, on all alike
    ours, theirs = (load_file(run / "loss.safetensors")["proxies"] for run in (together, tmp_path / "alone"))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_what_looks_at_all_training_images_sees_on_each_process_what_one_sees(recipe: Path, tmp_path: Path) -> None:
    callbacks = "[proxemic.training.DistanceToProxy, proxemic.training.Snapshots]"
    # Of the first process more batches than of the others, the last of which is a short one.
    flags = ["--training.callbacks", callbacks, "--training.epochs", "1", "--evaluation.batch_size", "7", *SLOW_SGD]
    places, distances = [], []
    for world in (1, 3):
        run = tmp_path / str(world)
        results = proxemic_together(world, "train", "--recipe", recipe, "--out", run, *flags)
        assert not any(result.returncode for result in results), results
        places.append(load_file(run / "snapshots" / "epoch-0000.safetensors"))
        distances += [float(row["avg_dtp"]) for row in history(run)]
    assert places[0].keys() == places[1].keys()
    for name, of_one in places[0].items():
        assert torch.equal(places[1][name], of_one), name
    assert distances[1] == pytest.approx(distances[0], rel=1e-4)


def test_slurm_starts_processes_as_torchrun_does(recipe: Path, together: Path, tmp_path: Path) -> None:
    run = tmp_path / "slurm"
    flags = ["train", "--recipe", recipe, "--out", run, "--proxies", "sharded", *TWO_PHASES]
    results = finish(start_together(2, *flags, slurm=True))
    assert [result.returncode for result in results] == [0, 0], results
    assert_same(run, together)


def test_what_a_loss_draws_all_processes_draw_alike(recipe: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.yaml"
    document = yaml.safe_load(recipe.read_text())
    document["loss"] = {
        "class_path": "proxemic.losses.PairwiseLoss",
        "init_args": {
            "loss": {"class_path": "pytorch_metric_learning.losses.TripletMarginLoss"},
            "miner": {"class_path": "pytorch_metric_learning.miners.DistanceWeightedMiner"},
        },
    }
    pairs.write_text(yaml.safe_dump(document))
    for world in (1, 2):
        flags = ["train", "--recipe", pairs, *SLOW_SGD, "--batches.images_per_class", "2"]
        results = proxemic_together(world, *flags, "--out", tmp_path / str(world))
        assert not any(result.returncode for result in results), results
    torch.testing.assert_close(losses(tmp_path / "1"), losses(tmp_path / "2"), rtol=1e-4, atol=0)


def test_a_sharded_run_goes_on_with_another_number_of_processes(recipe: Path, together: Path, tmp_path: Path) -> None:
    run = tmp_path / "moved"
    flags = ["--proxies", "sharded", *TWO_PHASES, "--training.checkpoint_minutes", "0"]
    processes = start_together(3, "train", "--recipe", recipe, "--out", run, *flags)
    interrupt_after(processes, run)
    results = finish(processes)
    assert [result.returncode for result in results] == [2, 2, 2]
    assert sum("everything is saved" in result.stderr for result in results) == 1
    (folder,) = (run / "checkpoints").glob("proxies-*")
    assert len(list(folder.iterdir())) == 3
    (result,) = proxemic_together(1, "train", "--resume", run)
    assert result.returncode == 0, result.stderr
    torch.testing.assert_close(losses(run), losses(together), rtol=1e-4, atol=0)


def interrupt_after(processes: list[warm.Process], run: Path) -> None:
    """Ctrl-C, which a terminal sends to all, once the first step is saved."""
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)
    for process in processes:
        os.kill(process.pid, signal.SIGINT)


@pytest.mark.parametrize(("layout", "loss"), [("sharded", "CurricularFaceLoss"), ("replicated", "ElasticFaceLoss")])
def test_parts_sampled_classes_averages_and_margins_resume_in_the_middle_of_an_epoch(
    recipe: Path, tmp_path: Path, layout: str, loss: str
) -> None:
    flags = [
        "--proxies",
        layout,
        "--loss",
        loss,
        "--loss.sample_rate",
        "0.3",
        "--batches.images_per_class",
        "2",
        "--batches.micro_batches",
        "2",
    ]
    whole, run = tmp_path / "whole", tmp_path / "stopped"
    assert [r.returncode for r in proxemic_together(2, "train", "--recipe", recipe, *flags, "--out", whole)] == [0, 0]
    saving = ["--training.checkpoint_minutes", "0"]
    processes = start_together(2, "train", "--recipe", recipe, *flags, *saving, "--out", run)
    interrupt_after(processes, run)
    assert [result.returncode for result in finish(processes)] == [2, 2]
    assert not (run / "metrics.json").exists()
    assert [result.returncode for result in proxemic_together(2, "train", "--resume", run)] == [0, 0]
    assert_same(run, whole)


def test_torchrun_names_a_killed_process_and_the_run_resumes(recipe: Path, together: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    flags = ["--proxies", "sharded", *TWO_PHASES, "--training.checkpoint_minutes", "0"]
    words = ["train", "--recipe", str(recipe), "--out", str(run), *flags]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*launcher, "-m", "proxemic", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = children(process.pid)
    assert len(workers) == 2
    killed = max(workers)
    rank = next(
        variable.removeprefix("RANK=")
        for variable in Path(f"/proc/{killed}/environ").read_text().split("\0")
        if variable.startswith("RANK=")
    )
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    output, _ = process.communicate(timeout=120)
    assert time.monotonic() - began < 60
    assert process.returncode != 0
    (sentence,) = [line for line in output.splitlines() if line.startswith("proxemic: ")]
    assert f"rank {rank} (process {killed} on " in sentence
    assert "--resume" in sentence
    assert [result.returncode for result in proxemic_together(2, "train", "--resume", run)] == [0, 0]
    assert_same(run, together)


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize("killed", [0, 1])
def test_of_processes_without_a_launcher_the_others_end_too(recipe: Path, tmp_path: Path, killed: int) -> None:
    # The first one holds what they leave each other word in.
    run = tmp_path / "killed"
    processes = start_together(2, "train", "--recipe", recipe, "--out", run, "--training.epochs", "1000")
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)
    processes[killed].kill()
    began = time.monotonic()
    survivor = finish(processes)[1 - killed]
    assert time.monotonic() - began < 60
    assert survivor.returncode == 2
    (sentence,) = [line for line in survivor.stderr.splitlines() if line.startswith("proxemic: ")]
    assert "rank 0" in sentence if killed == 0 else "rank 1 (process" in sentence
    assert "Traceback" not in survivor.stderr


FROZEN = """
import os, signal, sys
import proxemic.training.multiprocess.processes as several

several._HANGING = 3.0
with several.join_processes() as processes:
    processes.any(False)
    if processes.rank == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGSTOP)  # as a machine that is cut off: nothing is closed
    processes.any(False)
"""


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_machine_that_does_not_answer_ends_the_others(frozen: int) -> None:
    # Without torchrun the first is also the one that keeps the others together.
    processes = start_together(2, str(frozen), program=("-c", FROZEN))
    other = processes[1 - frozen]
    try:
        _, error = other.communicate(timeout=60)
    finally:
        processes[frozen].kill()
        processes[frozen].communicate()
    assert other.returncode == 2
    (sentence,) = [line for line in error.splitlines() if line.startswith("proxemic: ")]
    assert f"rank {frozen}" in sentence


SLOW_TO_SAY = """
import os, signal, threading, time
import proxemic.training.multiprocess.processes as several

first_to_say = several._Life.first_to_say

def slowly(life):
    answer = first_to_say(life)
    time.sleep(3 * (threading.current_thread() is threading.main_thread()))
    return answer

several._Life.first_to_say = slowly
with several.join_processes() as processes:
    processes.any(False)
    if not processes.is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    processes.any(False)
"""


def test_who_is_to_say_which_is_lost_is_not_cut_short() -> None:
    first, _ = finish(start_together(2, program=("-c", SLOW_TO_SAY)))
    assert "UserError: rank 1 (process" in first.stderr


SIGNALS_LATE = """
import os, signal, sys
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from proxemic.cli import main
from proxemic.training.checkpointing import RunKeeper
from proxemic.training.multiprocess.processes import _Life

def and_then(kind, name, *numbers):
    method = getattr(kind, name)
    def with_signals(*words):
        try:
            return method(*words)
        finally:
            for number in numbers:
                os.kill(os.getpid(), number)
    setattr(kind, name, with_signals)

def not_called(*words):
    os._exit(3)

and_then(RunKeeper, "on_train_start", signal.SIGINT)
fit = (sys.modules["proxemic.training.train"], "_fit")
for kind, name in ((RunKeeper, "_leave"), (_SignalConnector, "teardown"), fit, (_Life, "leave_to_caller")):
    and_then(kind, name, signal.SIGINT, signal.SIGUSR1)
and_then(_Life, "leave_to_caller", signal.SIGTERM)
_TrainingEpochLoop._broadcast_sigterm_tensor = _SignalConnector._sigterm_notifier_fn = not_called
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_that_comes_to_one_when_all_have_stopped_ends_nothing(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    results = finish(start_together(2, "train", "--recipe", recipe, "--out", run, program=("-c", SIGNALS_LATE)))
    assert [result.returncode for result in results] == [2, 2], results
    speaker = next(result for result in results if result.stderr)
    assert_refused(speaker, ["everything is saved", f"proxemic train --resume {run}"])
    assert not "".join(result.stderr for result in results if result is not speaker)


NOT_SHARED = """
import os, sys
from proxemic.cli import main
from proxemic.training import train

sys.modules[train.__module__]._SEEN_BY = 1.0
os.chdir(sys.argv[1 + int(os.environ["RANK"])])
sys.exit(main(["train", *sys.argv[3:]]))
"""


@pytest.mark.parametrize("resume", [False, True])
def test_machines_that_do_not_share_the_run_directory_are_told(
    recipe: Path, together: Path, tmp_path: Path, resume: bool
) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        if resume:  # a copy for each, perhaps of another age
            shutil.copytree(together, folder / "run")
            (folder / "run" / "metrics.json").unlink()
    words = ["--resume", "run"] if resume else ["--recipe", recipe, "--out", "run"]
    results = finish(start_together(2, *folders, *words, program=("-c", NOT_SHARED)))
    assert [result.returncode for result in results] == [2, 2], results
    lines = [line for result in results for line in result.stderr.splitlines() if line.startswith("proxemic: ")]
    assert len(lines) == 1
    assert lines[0] == (
        "proxemic: run is not the same folder for all processes: give --out or --resume one that all machines share."
    )
    assert not list(tmp_path.rglob("*.tmp"))


ALONE = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import proxemic.training.multiprocess.processes as several

rank, folder = os.environ["RANK"], Path(sys.argv[1])
if rank == "2":
    sys.exit()  # it never comes
(folder / rank).touch()
while len(list(folder.iterdir())) < 2:
    time.sleep(0.01)  # the others come at once
several._JOINING = timedelta(seconds=2 if rank == "0" else 60)
try:
    with several.join_processes():
        raise AssertionError
except several.UserError as error:
    print(error)
"""


def test_processes_that_do_not_come_are_missed(tmp_path: Path) -> None:
    first, other, _ = finish(start_together(3, tmp_path, program=("-c", ALONE)))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("Not all of 3 processes came to 127.0.0.1:")
    assert (other.returncode, other.stdout) == (2, "")


def test_an_error_of_any_kind_is_said() -> None:
    code = """
import os, signal, time
import proxemic.training.multiprocess.processes as several

several._SILENT = 1000.0  # so long the others would be waited for, if it looked as if one were lost

def leave_with_signals(life):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)  # what is to be said is said all the same

several._Life.leave_to_caller = leave_with_signals
with several.join_processes() as processes:
    if processes.is_first:
        time.sleep(60)
    raise RuntimeError("no such thing")
"""
    first, other = finish(start_together(2, program=("-c", code)))
    assert (first.returncode, first.stderr) == (2, "")
    assert other.returncode == 1
    assert "RuntimeError: no such thing" in other.stderr


@pytest.mark.parametrize("ends_well", [True, False])
def test_where_the_first_keeps_them_together_it_goes_last(ends_well: bool) -> None:
    # The other joins late, and ends late: whenever it asks, the first must still be there.
    code = f"""
import os, time
import torch.distributed as dist
import proxemic.training.multiprocess.processes as several

join = dist.init_process_group

def join_late(*words, **named):
    join(*words, **named)
    time.sleep(2 * (os.environ["RANK"] == "1"))

dist.init_process_group = join_late
if {ends_well}:
    several._WAITING = 1.0  # for three of these it waits for one that joins, and for one that works without an end
with several.join_processes() as processes:
    if processes.is_first and not {ends_well}:
        raise several.UserError("no such thing")
    time.sleep(0 if processes.is_first else 4)
"""
    first, other = finish(start_together(2, program=("-c", code)))
    if ends_well:
        assert (first.returncode, first.stderr) == (0, "")
        assert (other.returncode, other.stderr) == (0, "")
    else:
        assert first.returncode == 1
        assert "UserError: no such thing" in first.stderr
        assert (other.returncode, other.stderr) in [(0, ""), (2, "")]


def test_what_is_wrong_is_said_once(recipe: Path, tmp_path: Path) -> None:
    hist = ["--loss", "HISTLoss", "--proxies", "sharded"]
    cases = {
        "HISTLoss needs those of the whole batch": ["--recipe", recipe, "--out", tmp_path / "hist", *hist],
        "no recipe 'nonsense'": ["--recipe", "nonsense"],
        "no_such": ["--recipe", recipe, "--data.no_such", "1"],
        "unrecognized": ["--recipe", recipe, "--unrecognized"],
        "batches.micro_batches is 3, but of a batch of 5 images a process has 2": [
            *["--recipe", recipe, "--out", tmp_path / "parts", "--batches.size", "5", "--batches.micro_batches", "3"]
        ],
        "2 processes share each batch": ["--recipe", recipe, "--out", tmp_path / "small", "--batches.size", "1"],
        "holds another run": ["--recipe", recipe, "--out", recipe.parent / "taken"],
    }
    (recipe.parent / "taken").mkdir()
    (recipe.parent / "taken" / "recipe.yaml").touch()
    for words, flags in cases.items():
        results = proxemic_together(2, "train", *flags)
        assert [result.returncode for result in results] == [2, 2], results
        speaker = next(result for result in results if result.stderr.strip())
        assert_refused(speaker, [words])
        assert not "".join(result.stderr for result in results if result is not speaker).strip()


def test_an_image_that_one_process_cannot_read_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    recipe = write_recipe(tmp_path / "tiny.yaml", folder)
    run = tmp_path / "run"
    flags = ["--training.epochs", "1000", "--training.checkpoint_minutes", "0", "--batches.workers", "1"]
    processes = start_together(2, "train", "--recipe", recipe, "--out", run, *flags)
    while not (run / "checkpoints" / "last.ckpt").exists():
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.01)
    for image in folder.rglob("*.png"):
        image.write_bytes(b"no image")
    results = finish(processes)
    assert [result.returncode for result in results] == [2, 2]
    lines = [line for result in results for line in result.stderr.splitlines() if line.startswith("proxemic: ")]
    assert len(lines) == 1
    assert str(folder) in lines[0]
    assert ".png" in lines[0]


@pytest.mark.parametrize("fault", ["a file is missing", "a file is cut", "the folder is missing"])
def test_a_checkpoint_that_is_not_whole_is_refused(together: Path, tmp_path: Path, fault: str) -> None:
    run = tmp_path / "copy"
    shutil.copytree(together, run)
    (run / "metrics.json").unlink()
    (folder,) = (run / "checkpoints").glob("proxies-*")
    first, last = sorted(folder.iterdir())
    if fault == "a file is missing":
        last.unlink()
    elif fault == "a file is cut":
        first.write_bytes(first.read_bytes()[:-8])
    else:
        shutil.rmtree(folder)
    (result,) = proxemic_together(1, "train", "--resume", run)
    assert result.returncode == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("proxemic: ")]
    assert str(folder) in line
    assert "Traceback" not in result.stderr


def test_what_a_kill_leaves_of_a_checkpoint_is_not_taken_for_one(together: Path, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(together, run)
    (run / "metrics.json").unlink()
    checkpoints = run / "checkpoints"
    (folder,) = checkpoints.glob("proxies-*")
    shutil.copytree(folder, checkpoints / "proxies-9999.tmp")
    newer = checkpoints / "proxies-9999"  # complete, but no checkpoint came to name it
    shutil.copytree(folder, newer)
    results = proxemic_together(2, "train", "--resume", run)
    assert [result.returncode for result in results] == [0, 0], results
    assert_same(run, together)


def test_the_network_gets_the_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    """Of a real recipe, with batch norm, whose kinks would turn float32's rounding into larger differences."""
    found = run_processes(Path(__file__).parents[1] / "network_gradients.py", tmp_path)
    for process in found:
        assert process["worst"] < 1e-11, process
        assert process["tensors"] > 15
        assert process["with an activation"] < 1e-12
        assert process["clipped"] < 1e-6  # torch adds 1e-6 to the norm


def test_batch_norm_of_a_kind_that_is_not_known_is_refused() -> None:
    class OddBatchNorm(torch.nn.BatchNorm2d):
        pass

    with pytest.raises(UserError, match="has a OddBatchNorm, which is not synchronised over processes on CPUs: set"):
        JoinedBatchNorm("cpu").apply(torch.nn.Sequential(OddBatchNorm(2)))


FIRST_GOES_AHEAD = """
import sys, time
from pathlib import Path
from proxemic.training.multiprocess.processes import join_processes

file = Path(sys.argv[1])
with join_processes() as processes:
    with processes.first_goes_ahead("file"):
        if processes.is_first:
            time.sleep(0.5)
            file.touch()
        assert file.exists()
    assert processes.first_says(str(processes.rank)) == "0"
    assert processes.any(processes.rank == 1, False) == (True, False)
"""


def test_the_first_process_goes_ahead_of_the_others(tmp_path: Path) -> None:
    results = finish(start_together(3, tmp_path / "file", program=("-c", FIRST_GOES_AHEAD)))
    assert [result.returncode for result in results] == [0, 0, 0], results


def test_other_commands_are_for_one_process(recipe: Path) -> None:
    for words in (["compare", recipe], ["evaluate", recipe.parent / "none"]):
        one, other = proxemic_together(2, *words)
        assert_refused(one, ["is for one process: start it without torchrun"])
        assert (other.returncode, other.stdout, other.stderr) == (2, "", "")
