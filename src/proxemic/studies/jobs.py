"""Many training runs: one after the other or side by side, each kept once it is finished."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.allocator import keep_freed_memory
from proxemic.errors import Interrupted, OutOfMemory, UserError
from proxemic.safe_path import safe_path
from proxemic.studies.recipe_content import same_recipe

RUN_THREADS = 1
"""CPU threads of a run whose recipe names none: the same figures with any number of workers, on any machine."""


@dataclass(frozen=True)
class Job:
    """One training run of a recipe, with overrides, into a run directory.

    ``test`` evaluates on the test classes at the end. ``begin`` is a finished run that this one continues; the recipe
    adds a second phase to it.
    """

    recipe: Path
    flags: tuple[str, ...]
    out: Path
    test: bool = True
    begin: Path | None = None


def run_job(
    job: Job,
    *,
    report: Callable[[str], object] | None = None,
    on_epoch: Callable[[Mapping[str, float]], object] | None = None,
) -> dict[str, Any]:
    """Train in this process, or resume what was begun, and return the content of the run's ``metrics.json``.

    A finished run is only read; a run of another recipe raises `UserError`. A recipe without ``training.threads`` is
    trained with `RUN_THREADS`. ``report`` is called with lines for the user, and ``on_epoch`` with each new row of the
    history; what it raises ends the training, which can be resumed.
    """
    from proxemic.data.images import NO_TEST  # all import torch, before which a worker leaves Ctrl-C to its parent
    from proxemic.recipes.reader import read_recipe
    from proxemic.runs.processes import Processes
    from proxemic.training import RunDirectory, train
    from proxemic.training.beginning import branch

    run = RunDirectory(job.out)
    read = read_recipe(job.recipe, job.flags, own_code=True)
    if job.test and not read.recipe.data.has_test:
        raise UserError(f"{job.recipe}: {NO_TEST}")
    begun = run.recipe.exists()
    if begun and not same_recipe(run.recipe.read_text(encoding="utf-8"), read.yaml):
        raise UserError(
            f"{job.out} was begun with another recipe than {job.recipe} is now: give the one it had, or a new folder."
        )
    if begun and run.metrics.exists():
        return dict(run.read_metrics())
    if job.begin is not None and not begun:
        branch(RunDirectory(job.begin), run, read.yaml, sum(read.recipe.lengths))
        begun = True
    return train(
        read,
        job.out,
        resume=begun,
        threads=RUN_THREADS,
        report=report,
        progress=False,
        test=job.test,
        on_epoch=on_epoch,
        processes=Processes(),
    ).metrics


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Worker processes that run jobs; a context manager.

    The output of a run goes to a ``.log`` beside its run directory. Ctrl-C (or SIGTERM) saves the runs that are in
    progress and ends with `Interrupted`; running the same jobs again resumes them. A worker that was killed raises
    `UserError`.
    """

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise ValueError(f"--workers is {count}, but must be at least 1.")
        self.count = count
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads, which do not survive it
        self._pool = ProcessPoolExecutor(count, spawn, _begin_worker)

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        on_result: Callable[[Job, dict[str, Any]], object],
        on_failure: Callable[[Job, Exception], object],
    ) -> None:
        """Run jobs; call ``on_result`` or ``on_failure`` for each as it ends, while the others go on."""
        with self._guarded():
            submitted = {self._pool.submit(_logged, job): job for job in jobs}
            for future in as_completed(submitted):
                try:
                    metrics = future.result()
                except Interrupted:
                    raise
                except (UserError, ValueError, OSError) as error:
                    on_failure(submitted[future], error)
                else:
                    on_result(submitted[future], metrics)

    def share(self, work: Callable[..., object], *arguments: object) -> None:
        """Call a function of a module in every process, and wait until it has returned in all; one failure ends all.

        The function divides the work, and calls `check_stopped`.
        """
        with self._guarded():
            for future in as_completed([self._pool.submit(_shared, work, arguments) for _ in range(self.count)]):
                future.result()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Pass Ctrl-C on to the workers, which save; a second one kills them."""
        stopping = False

        def stop(number: int, frame: object) -> None:
            nonlocal stopping
            again, stopping = stopping, True
            for process in list(self._pool._processes.values()):
                process.kill() if again else process.terminate()
            # Not print: a signal may come in the middle of one.
            os.write(1, b"\nStopping: saving first; once more stops at once.\n" if not again else b"")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with safe_path():  # the first job starts the processes
                yield
        except BrokenProcessPool:
            if stopping:
                raise Interrupted("Stopped at once: the same command goes on from the last checkpoints.") from None
            raise UserError(
                "A worker process was killed (out of memory, perhaps): the same command goes on where it was; with "
                "fewer --workers it takes less memory."
            ) from None
        except Interrupted:
            raise  # the workers know already
        except BaseException:
            for process in list(self._pool._processes.values()):
                process.terminate()  # what is under way is saved, not waited for to its end
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_stopped = False
"""Whether this worker was told to stop."""


def _begin_worker() -> None:
    # First of all, before seconds of imports: a terminal sends Ctrl-C to every process of its group. The parent passes
    # it on, once: a training that hears of it twice stops at once, without saving.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _stop_worker)
    # A parent that is killed cannot stop its workers, which would go on writing beside its successor's.
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    keep_freed_memory()
    import torch

    torch.set_num_threads(RUN_THREADS)


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
    """Run a job with its output in a file, as several write at a time; libraries in C write there, too."""
    job.out.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    try:
        with job.out.with_name(f"{job.out.name}.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        with _until_stopped():
            return run_job(job, report=print, on_epoch=lambda _: check_stopped())
    except OutOfMemory as error:
        raise OutOfMemory(f"With fewer --workers a run has more memory. {error}") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in enumerate(saved, start=1):
            os.dup2(copy, number)
            os.close(copy)


def _shared(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    with _until_stopped():
        work(*arguments)


@contextlib.contextmanager
def _until_stopped() -> Iterator[None]:
    """Remember that a training, which has a signal handler of its own, was told to stop."""
    global _stopped
    try:
        check_stopped()
        yield
    except Interrupted:
        _stopped = True
        raise


def check_stopped() -> None:
    """Raise `Interrupted` in a process that was told to stop while it did not train."""
    if _stopped:
        raise Interrupted("Stopped, everything is saved: the same command goes on where it was.")
