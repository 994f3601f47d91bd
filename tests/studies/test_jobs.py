"""Runs of recipes, in worker processes or in this one."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Process
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import warm
from images import write_folder, write_recipe
from proxemic.errors import Interrupted, OutOfMemory, UserError
from proxemic.recipes.reader import ReadRecipe, read_recipe
from proxemic.studies import jobs
from proxemic.studies.jobs import Job, Workers, run_job
from proxemic.training import Recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, dict[str, Any]]]:
    """The recipes and keywords that `train` is called with, which trains nothing."""
    calls: list[tuple[Recipe, dict[str, Any]]] = []

    def train(read: ReadRecipe, *_: Any, **options: Any) -> SimpleNamespace:
        calls.append((read.recipe, options))
        return SimpleNamespace(metrics={})

    monkeypatch.setattr("proxemic.training.train", train)
    return calls


EARLY = """
import os, signal, torch
from proxemic.studies import jobs

del os.setpgid  # as on Windows; this process leads a group already
torch.set_num_threads = lambda count: signal.raise_signal(signal.SIGINT)  # as soon as there is torch
jobs._begin_worker()
"""


def test_a_worker_that_begins_leaves_ctrl_c_to_its_parent() -> None:
    done = warm.run("-c", EARLY)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lost_worker_fails_its_job_alone(recipe: Path, tmp_path: Path) -> None:
    killed = Job(recipe, ("--training.epochs", "100000"), tmp_path / "killed")
    other = Job(tmp_path / "missing.yaml", (), tmp_path / "other")
    failures: list[tuple[Job, str]] = []
    with Workers(1) as workers, ThreadPoolExecutor(1) as pool:

        def kill() -> None:
            while not (killed.out / "recipe.yaml").exists() and not failures:
                time.sleep(0.05)
            workers._workers[0].processes[0].kill()

        killing = pool.submit(kill)
        workers.run(
            [killed, other],
            on_result=lambda *_: pytest.fail("nothing was trained"),
            on_failure=lambda job, error: failures.append((job, str(error))),
        )
        killing.result()
        assert [job for job, _ in failures] == [killed, other]
        assert "Its worker process was killed" in failures[0][1]
        assert "missing.yaml" in failures[1][1]
        # What the calls share is left to the others.
        workers.share(signal.raise_signal, signal.SIGKILL)
        with pytest.raises(FileExistsError):
            workers.share(os.mkdir, tmp_path)


def test_a_script_that_its_workers_run_again_is_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from proxemic.studies.jobs import Workers\nWorkers(1).share(print)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert "UserError: A worker process ended before its first job" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr


class Threads(ThreadPoolExecutor):
    """In place of a process, which takes seconds to start."""

    processes: ClassVar[list[Process]] = []

    def call(self, function: Any, *arguments: Any) -> Future[Any]:
        return self.submit(function, *arguments)


def test_jobs_that_fail_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Job, **_: Any) -> dict[str, Any]:
        if job.out.name == "bad":
            raise UserError("The loss is nan.")
        return {"epoch": 1}

    monkeypatch.setattr(jobs, "run_job", run)
    bad, good = (Job(tmp_path / "any.yaml", (), tmp_path / name) for name in ("bad", "good"))
    ended: list[tuple[Job, Any]] = []
    with Workers(1) as workers:
        monkeypatch.setattr(workers, "_workers", [Threads(1)])
        workers.run(
            [bad, good],
            on_result=lambda job, metrics: ended.append((job, metrics)),
            on_failure=lambda job, error: ended.append((job, str(error))),
        )
        assert sorted(ended, key=str) == [(bad, "The loss is nan."), (good, {"epoch": 1})]


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def stop_twice() -> None:
        with pipe.open("wb"):  # as soon as the worker reads from it, without an end
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)

    thread = threading.Thread(target=stop_twice)
    thread.start()
    with Workers(1) as workers, pytest.raises(Interrupted, match="Stopped at once: the same command continues"):
        workers.share(Path.read_bytes, pipe)
    thread.join()
    assert signal.getsignal(signal.SIGINT) == before


def test_a_worker_without_memory_says_what_needs_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise OutOfMemory("Batches of 8 need less.")

    monkeypatch.setattr(jobs, "run_job", run)
    with pytest.raises(OutOfMemory, match=r"^With fewer --workers, each run has more memory\. Batches"):
        jobs._logged(Job(tmp_path / "any.yaml", (), tmp_path / "run"))
    assert (tmp_path / "run.log").read_text() == ""


def test_a_worker_that_was_told_to_stop_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_stopped", False)
    done: list[str] = []

    def work() -> None:
        done.append("begun")
        raise Interrupted("Stopped by the training itself.")

    with pytest.raises(Interrupted, match="by the training itself"):
        jobs._shared(work, ())
    with pytest.raises(Interrupted, match="everything is saved"):
        jobs._shared(work, ())
    assert done == ["begun"]


def test_a_finished_run_is_only_read(
    recipe: Path, tmp_path: Path, trained: list[tuple[Recipe, dict[str, Any]]]
) -> None:
    job = Job(recipe, (), tmp_path / "run")
    job.out.mkdir()
    (job.out / "recipe.yaml").write_text(read_recipe(recipe).yaml)
    (job.out / "metrics.json").write_text('{"epoch": 3, "selected_on": "last"}')
    assert run_job(job) == {"epoch": 3, "selected_on": "last"}
    assert trained == []


def test_a_run_has_the_threads_that_its_recipe_names(
    recipe: Path, tmp_path: Path, trained: list[tuple[Recipe, dict[str, Any]]]
) -> None:
    for flags in ((), ("--training.threads", "2")):
        run_job(Job(recipe, flags, tmp_path / "run"))
    assert [(called.training.threads, options["threads"]) for called, options in trained] == [(None, 1), (2, 1)]
    with pytest.raises(ValueError, match=r"training\.threads is 0, but must be at least 1"):
        run_job(Job(recipe, ("--training.threads", "0"), tmp_path / "run"))


def test_a_run_that_was_begun_goes_on_with_the_same_recipe_alone(
    recipe: Path, tmp_path: Path, trained: list[tuple[Recipe, dict[str, Any]]]
) -> None:
    job = Job(recipe, ("--training.epochs", "1"), tmp_path / "run")
    job.out.mkdir()
    (job.out / "recipe.yaml").write_text(read_recipe(job.recipe, job.flags).yaml)
    run_job(job)
    assert [options["resume"] for _, options in trained] == [True]
    with pytest.raises(UserError, match="begun with another recipe"):
        run_job(replace(job, flags=(*job.flags, "--training.threads", "2")))
