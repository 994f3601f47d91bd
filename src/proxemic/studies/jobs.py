"""Train many runs, one after the other or in several processes; finished runs are kept."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.allocator import keep_freed_memory
from proxemic.errors import Interrupted, OutOfMemory, UserError
from proxemic.ranges import check_range
from proxemic.safe_path import safe_path
from proxemic.studies.recipe_content import same_recipe

RUN_THREADS = 1
"""CPU threads of a run whose recipe sets none, so that results do not depend on the workers or the machine."""


@dataclass(frozen=True)
class Job:
    """The training of a recipe with overrides (``flags``) into the run directory ``out``.

    With ``test``, the run is evaluated on the test classes at the end.
    """

    recipe: Path
    flags: tuple[str, ...]
    out: Path
    test: bool = True


def run_job(
    job: Job,
    *,
    report: Callable[[str], object] | None = None,
    on_epoch: Callable[[Mapping[str, float]], object] | None = None,
) -> dict[str, Any]:
    """Train or resume a run in this process, and return the content of its ``metrics.json``.

    A finished run is not trained again; a run of another recipe raises `UserError`. A recipe without
    ``training.threads`` is trained with `RUN_THREADS`. ``report`` is called with lines for the user, and ``on_epoch``
    with each new row of the history. An exception in ``on_epoch`` ends the training, which can then be resumed.
    """
    from proxemic.data.images import NO_TEST  # these import torch; a worker must ignore Ctrl-C before that
    from proxemic.recipes.reader import read_recipe
    from proxemic.runs.processes import Processes
    from proxemic.training import RunDirectory, train

    run = RunDirectory(job.out)
    read = read_recipe(job.recipe, job.flags, own_code=True)
    if job.test and not read.recipe.data.has_test:
        raise UserError(f"{job.recipe}: {NO_TEST}")
    begun = run.recipe.exists()
    if begun and not same_recipe(run.recipe.read_text(encoding="utf-8"), read.yaml):
        raise UserError(
            f"{job.out} was begun with another recipe than {job.recipe} is now: give its first recipe, or a new folder."
        )
    if begun and run.metrics.exists():
        return dict(run.read_metrics())
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


class _Worker(ProcessPoolExecutor):
    """A pool of one process, whose death does not affect other workers."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads, which do not survive it
        super().__init__(1, spawn, _begin_worker)
        self._first: Future[int] | None = None

    def call(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Call a module-level function in the process, which starts with the first call."""
        try:
            self._first = self._first or self.submit(os.getpid)
            return self.submit(function, *arguments)
        except BrokenProcessPool as error:  # killed since its last call
            failed = Future[Any]()
            failed.set_exception(error)
            return failed

    @property
    def has_begun(self) -> bool:
        """Whether the process has started; False if it ended before its first call."""
        return self._first is not None and self._first.done() and self._first.exception() is None

    @property
    def processes(self) -> list[Any]:
        """The process, if it has started."""
        return list((self._processes or {}).values())


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Worker processes, as a context manager; each imports once and runs one job after the other.

    The output of a run goes to a ``.log`` file next to its run directory. Ctrl-C (or SIGTERM) saves the current runs
    and raises `Interrupted`; running the same jobs again resumes them. If a worker is killed, its job fails.
    """

    def __init__(self, count: int = 1) -> None:
        check_range("workers", count, "[1, inf)")
        self.count = count
        self._workers = [_Worker() for _ in range(count)]
        self._stopping = False

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        on_result: Callable[[Job, dict[str, Any]], object],
        on_failure: Callable[[Job, Exception], object],
    ) -> None:
        """Run jobs; as each ends, call ``on_result`` or ``on_failure`` while the others continue."""
        waiting, running = list(jobs)[::-1], dict[Future[dict[str, Any]], tuple[_Worker, Job]]()
        with self._guarded():
            while waiting or running:
                busy = [worker for worker, _ in running.values()]
                for worker in [worker for worker in self._workers if worker not in busy][: len(waiting)]:
                    job = waiting.pop()
                    running[worker.call(_logged, job)] = worker, job
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    worker, job = running.pop(future)
                    try:
                        metrics = future.result()
                    except Interrupted:
                        raise
                    except BrokenProcessPool as error:
                        on_failure(job, self._replace(worker, error))
                    except (UserError, ValueError, OSError) as error:
                        on_failure(job, error)
                    else:
                        on_result(job, metrics)

    def share(self, work: Callable[..., object], *arguments: object) -> None:
        """Call a module-level function in every worker, and wait for all of them; an exception in one stops all.

        The function itself must divide the work among its calls, and call `check_stopped` now and then. The work of a
        killed worker is left to the others.
        """
        with self._guarded():
            calls = {worker.call(_shared, work, arguments): worker for worker in self._workers}
            for call in as_completed(calls):
                try:
                    call.result()
                except BrokenProcessPool as error:
                    self._replace(calls[call], error)

    def _replace(self, worker: _Worker, error: BrokenProcessPool) -> UserError:
        """Replace a worker that was killed; return the error of its job."""
        if self._stopping:
            raise Interrupted("Stopped at once: the same command continues from the last checkpoints.") from None
        if not worker.has_begun:
            raise UserError(
                'A worker process ended before its first job. A script must call this below if __name__ == "__main__", '
                "since workers import it."
            ) from error
        self._workers[self._workers.index(worker)] = _Worker()
        return UserError(
            "Its worker process was killed, perhaps for lack of memory: the same command continues; fewer --workers "
            "take less memory."
        )

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Forward Ctrl-C to the workers, which then save; a second Ctrl-C kills them."""

        def stop(number: int, frame: object) -> None:
            again, self._stopping = self._stopping, True
            for worker in self._workers:
                for process in worker.processes:
                    process.kill() if again else process.terminate()
            # Not print: the signal may interrupt a print.
            os.write(1, b"\nStopping: saving first; once more stops at once.\n" if not again else b"")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with safe_path():  # the first job starts the processes
                yield
        except Interrupted:
            raise  # the workers have received it already
        except BaseException:
            for worker in self._workers:
                for process in worker.processes:
                    process.terminate()  # running jobs save and stop
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_stopped = False
"""Whether this worker has received SIGTERM."""


def _begin_worker() -> None:
    # Before the imports, which take seconds: a terminal sends Ctrl-C to every process of its group. The parent forwards
    # it once, because a training that receives it twice stops without saving.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _stop_worker)
    # A killed parent cannot stop its workers, which would write to the same files as its successor's.
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
    # During a training, its own handler saves. This handler is for the time before and after.
    global _stopped
    _stopped = True


def _logged(job: Job) -> dict[str, Any]:
    """Run a job with its output, also that of C libraries, in a log file."""
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
        raise OutOfMemory(f"With fewer --workers, each run has more memory. {error}") from error
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
    """Set `_stopped` if a training, which has its own signal handler, is interrupted in the block."""
    global _stopped
    try:
        check_stopped()
        yield
    except Interrupted:
        _stopped = True
        raise


def check_stopped() -> None:
    """Raise `Interrupted` if this process received SIGTERM outside of a training."""
    if _stopped:
        raise Interrupted("Stopped, everything is saved: the same command continues.")
