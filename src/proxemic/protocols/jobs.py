"""Many training runs: one after the other or side by side, each kept once it is finished."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.errors import Interrupted, UserError

__all__ = ["Job", "run_job", "run_jobs"]


@dataclass(frozen=True)
class Job:
    """One training run.

    Args:
        recipe: YAML file.
        flags: What overrides it, as on the command line.
        out: The run directory; one that holds the run, finished or begun, is taken up.
        test: Judge on the test classes at the end.
    """

    recipe: Path
    flags: tuple[str, ...]
    out: Path
    test: bool = True


def run_job(
    job: Job,
    *,
    report: Callable[[str], object] = print,
    on_epoch: Callable[[Mapping[str, float]], object] | None = None,
) -> dict[str, Any]:
    """Train in this process, or go on with what was begun; a finished run is only read.

    Args:
        job: What to train.
        report: Is given lines for the user.
        on_epoch: Is given each new row of the history; what it raises ends the training, which can be resumed.

    Returns:
        The content of the run's ``metrics.json``.

    Raises:
        UserError: If the recipe is refused, the training fails, or the directory holds a run of another recipe.
    """
    from proxemic.recipes.reader import read_recipe
    from proxemic.training import RunDirectory, train

    run = RunDirectory(job.out)
    read = read_recipe(job.recipe, job.flags)
    begun = run.recipe.exists()
    if begun and run.recipe.read_text(encoding="utf-8") != read.yaml:
        raise UserError(
            f"{job.out} was begun with another recipe than {job.recipe} is now: give the one it had, or a new folder."
        )
    if begun and run.metrics.exists():
        return json.loads(run.metrics.read_text(encoding="utf-8"))
    return train(
        read.recipe,
        read.yaml,
        job.out,
        resume=begun,
        report=report,
        progress=False,
        test=job.test,
        on_epoch=on_epoch,
    )


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    on_result: Callable[[Job, dict[str, Any]], object],
    on_failure: Callable[[Job, UserError], object] | None = None,
) -> None:
    """Run jobs, ``workers`` of them at a time, each with its share of the processors.

    What a run says goes to a ``.log`` beside its run directory. Ctrl-C (or SIGTERM) saves the runs that
    are under way and ends with `Interrupted`; the same call goes on where it was.

    Args:
        jobs: What to train.
        workers: Processes, at least 1.
        on_result: Is given each job that is finished, with its metrics.
        on_failure: Is given each job that failed, and the others go on; None ends all at the first failure.

    Raises:
        Interrupted: After Ctrl-C.
        UserError: If a job fails, or a worker was killed.
        ValueError: If ``workers`` is below 1.
    """
    if workers < 1:
        raise ValueError(f"--workers is {workers}, but must be at least 1.")
    if not jobs:
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker, (threads,))
    waiting: dict[Future[dict[str, Any]], Job] = {}
    try:
        with _signals_to(pool):
            waiting = {pool.submit(_logged, job): job for job in jobs}
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    _hand_over(waiting.pop(future), future, on_result, on_failure)
    except BrokenProcessPool:
        raise UserError(
            "A worker process was killed (out of memory, perhaps): the same command goes on where it was; with fewer "
            "--workers it takes less memory."
        ) from None
    finally:
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True, cancel_futures=True)


def _hand_over(
    job: Job,
    future: "Future[dict[str, Any]]",
    on_result: Callable[[Job, dict[str, Any]], object],
    on_failure: Callable[[Job, UserError], object] | None,
) -> None:
    try:
        result = future.result()
    except Interrupted:
        raise
    except (UserError, ValueError, OSError) as error:
        failure = UserError(f"{job.out.name}: {error}")
        if on_failure is None:
            raise failure from error
        on_failure(job, failure)
    else:
        on_result(job, result)


@contextlib.contextmanager
def _signals_to(pool: ProcessPoolExecutor) -> Iterator[None]:
    """While jobs run, Ctrl-C reaches the workers, which save; a second one kills them."""
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        again, stopping = stopping, True
        for process in list(pool._processes.values()):
            process.kill() if again else process.terminate()
        # Not print: a signal may come in the middle of one.
        os.write(1, b"\nStopping: saving first; once more stops at once.\n" if not again else b"")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BrokenProcessPool:
        if stopping:
            raise Interrupted("Stopped at once: the same command goes on from the last checkpoints.") from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_stopped = False
"""Whether this worker was told to stop."""


def _begin_worker(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    # A terminal sends Ctrl-C to every process of the group: the parent passes it on, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop_worker)
    # A parent that is killed cannot stop its workers, which would go on writing beside its successor's.
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _stop_worker(number: int, frame: object) -> None:
    # While a run trains it has a handler of its own, which saves; this one is for the time before and after.
    global _stopped
    _stopped = True


def _logged(job: Job) -> dict[str, Any]:
    """Run a job with its output in a file, as several write at a time."""
    global _stopped
    job.out.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        with job.out.with_name(f"{job.out.name}.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        _check_stopped({})
        return run_job(job, on_epoch=_check_stopped)
    except Interrupted:
        _stopped = True
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in enumerate(kept, start=1):
            os.dup2(copy, number)
            os.close(copy)


def _check_stopped(row: Mapping[str, float]) -> None:
    if _stopped:
        raise Interrupted("Stopped, everything is saved: the same command goes on where it was.")
