"""Sharded proxies in the checkpoints of a run."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from command_line import Here, assert_refused
from proxemic.recipes.reader import read_recipe
from proxemic.training import train
from together import TWO_PHASES, assert_same, finish, interrupt_after, losses, proxemic_together, start_together


def test_a_sharded_run_goes_on_with_another_number_of_processes(recipe: Path, together: Path, tmp_path: Path) -> None:
    run = tmp_path / "moved"
    flags = ["--proxies", "sharded", *TWO_PHASES, "--training.checkpoint_minutes", "0"]
    processes = start_together(3, "train", "--recipe", recipe, "--out", run, *flags)
    interrupt_after(processes, run)
    results = finish(processes)
    assert [result.returncode for result in results] == [2, 2, 2]
    assert all("everything is saved" in result.stderr for result in results)
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


class Stopped(Exception):
    pass


def test_an_optimiser_that_keeps_nothing_of_the_proxies_is_resumed(recipe: Path, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "stopped"
    flags = ["--proxies", "sharded", "--optim.optimizer", "torch.optim.SGD", "--training.epochs", "2"]
    one = read_recipe(recipe, [*flags, "--evaluation.untrained", "false"]).recipe

    def stop(row: Mapping[str, float]) -> None:
        raise Stopped

    train(one, whole, report=[].append)
    with pytest.raises(Stopped):
        train(one, run, report=[].append, on_epoch=stop)
    train(out=run, resume=True, report=[].append)
    assert_same(run, whole)


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
