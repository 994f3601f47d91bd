"""Sharded proxies in the checkpoints of a run."""

import shutil
import signal
from pathlib import Path

import pytest
import torch

from command_line import Here, assert_refused
from stopping import Stopped, run
from together import TWO_PHASES, assert_same, finish, interrupt_after, losses, proxemic_together, start_together


def test_slurm_asks_before_the_time_is_up_and_another_number_of_processes_goes_on(
    recipe: Path, together: Path, tmp_path: Path
) -> None:
    run = tmp_path / "moved"
    flags = ["--proxies", "sharded", *TWO_PHASES, "--training.checkpoint_minutes", "0", "--batches.workers", "1"]
    processes = start_together(3, "train", "--recipe", recipe, "--out", run, *flags, slurm=True)
    interrupt_after(processes, run, signal.SIGUSR1)  # as SLURM does: what loads the images has it too
    results = finish(processes)
    assert [result.returncode for result in results] == [2, 2, 2], results
    for result in results:
        assert result.stderr.endswith(f"everything is saved: continue with proxemic train --resume {run}\n")
    assert sum(result.stdout.count("Stopping: saving first") for result in results) == 1
    assert not list(run.glob("hpc_ckpt*"))
    (folder,) = (run / "checkpoints").glob("proxies-*")
    assert len(list(folder.iterdir())) == 3
    (result,) = proxemic_together(1, "train", "--resume", run)
    assert result.returncode == 0, result.stderr
    torch.testing.assert_close(losses(run), losses(together), rtol=1e-4, atol=0)


@pytest.mark.parametrize("fault", ["a file is missing", "a file is cut", "the folder is missing"])
def test_a_checkpoint_that_is_not_whole_is_refused(together: Path, tmp_path: Path, fault: str, here: Here) -> None:
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
    assert_refused(here("train", "--resume", run), [str(folder)])


def test_an_optimiser_that_keeps_nothing_of_the_proxies_is_resumed(recipe: Path, tmp_path: Path) -> None:
    flags = ["--proxies", "sharded", "--optim.optimizer", "torch.optim.SGD", "--training.epochs", "2"]
    flags += ["--evaluation.untrained", "false"]
    whole = run(recipe, tmp_path / "whole", *flags)
    stopped = tmp_path / "stopped"
    with pytest.raises(Stopped):
        run(recipe, stopped, *flags, stop_after=1)
    assert_same(run(recipe, stopped, resume=True), whole)
