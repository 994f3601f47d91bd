"""Runs of recipes, in worker processes or in this one."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warm
from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.protocols.runs.jobs import Job, Workers, run_job
from proxemic.recipes.reader import read_recipe
from proxemic.training import Recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, dict[str, Any]]]:
    """The recipes and keywords that `train` is called with, which trains nothing."""
    calls: list[tuple[Recipe, dict[str, Any]]] = []

    def train(recipe: Recipe, *_: Any, **options: Any) -> SimpleNamespace:
        calls.append((recipe, options))
        return SimpleNamespace(metrics={})

    monkeypatch.setattr("proxemic.training.train", train)
    return calls


EARLY = """
import os, signal, torch
from proxemic.protocols.runs import jobs

os.setpgid = lambda *_: None  # this process leads a group already
torch.set_num_threads = lambda count: signal.raise_signal(signal.SIGINT)  # as soon as there is torch
jobs._begin_worker()
"""


def test_a_worker_that_begins_leaves_ctrl_c_to_its_parent() -> None:
    done = warm.run("-c", EARLY)
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_are_processes_of_their_own(tmp_path: Path) -> None:
    with Workers(1) as workers:
        workers.share(os.mkdir, tmp_path / "made")
        with pytest.raises(FileExistsError):
            workers.share(os.mkdir, tmp_path / "made")
    assert (tmp_path / "made").is_dir()


def test_a_run_has_the_threads_that_its_recipe_names(
    recipe: Path, tmp_path: Path, trained: list[tuple[Recipe, dict[str, Any]]]
) -> None:
    for flags in ((), ("--training.threads", "2")):
        run_job(Job(recipe, flags, tmp_path / "run"))
    assert [(called.training.threads, options["threads"]) for called, options in trained] == [(None, 1), (2, 1)]
    with pytest.raises(ValueError, match=r"training\.threads is 0, but must be at least 1"):
        run_job(Job(recipe, ("--training.threads", "0"), tmp_path / "run"))


def test_a_run_that_an_earlier_version_began_goes_on(
    recipe: Path, tmp_path: Path, trained: list[tuple[Recipe, dict[str, Any]]]
) -> None:
    job = Job(recipe, ("--training.epochs", "1"), tmp_path / "run")
    text = read_recipe(job.recipe, job.flags).yaml
    assert "  threads: null\n" in text
    job.out.mkdir()
    (job.out / "recipe.yaml").write_text(text.replace("  threads: null\n", ""))
    run_job(job)
    assert [options["resume"] for _, options in trained] == [True]
    with pytest.raises(UserError, match="begun with another recipe"):
        run_job(replace(job, flags=(*job.flags, "--training.threads", "2")))
