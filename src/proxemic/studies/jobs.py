"""Train many runs, one after the other or in several processes; finished runs are kept."""

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
from proxemic.ranges import check_range
from proxemic.safe_path import safe_path
from proxemic.studies.recipe_content import same_recipe

RUN_THREADS = 1
"""CPU threads of a run whose recipe sets none, so that results do not depend on the workers or the machine."""


@dataclass(frozen=True)
class Job:
    """The training of a recipe with overrides (``flags``) into the run directory ``out``.

    With ``test``, the run is evaluated on the test classes at the end. ``begin`` is a finished run that this one
    continues with the second phase of the recipe.
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
    """Train or resume a run in this process, and return the content of its ``metrics.json``.

    A finished run is not trained again; a run of another recipe raises `UserError`. A recipe without
    ``training.threads`` is trained with `RUN_THREADS`. ``report`` is called with lines for the user, and ``on_epoch``
    with each new row of the history. An exception in ``on_epoch`` ends the training, which can then be resumed.
    """
    from proxemic.data.images import NO_TEST  # these import torch; a worker must ignore Ctrl-C before that
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
            f"{job.out} was begun with another recipe than {job.recipe} is now: give its first recipe, or a new folder."
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
    """Worker processes that run jobs, as a context manager.

    The output of a run goes to a ``.log`` file beside its run directory. Ctrl-C (or SIGTERM) saves the current runs and
    raises `Interrupted`; running the same jobs again resumes them. If a worker is killed, `UserError` is raised.
    """

    def __init__(self, count: int = 1) -> None:
        check_range("workers", count, "[1, inf)")
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
        """Run jobs; as each ends, call ``on_result`` or ``on_failure`` while the others continue."""
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
        """Call a module-level function in every worker, and wait for all of them; a failure of one stops all.

        The function itself must divide the work among its calls, and call `check_stopped` now and then.
        """
        with self._guarded():
            for future in as_completed([self._pool.submit(_shared, work, arguments) for _ in range(self.count)]):
                future.result()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Forward Ctrl-C to the workers, which then save; a second Ctrl-C kills them."""
        stopping = False

        def stop(number: int, frame: object) -> None:
            nonlocal stopping
            again, stopping = stopping, True
            for process in list(self._pool._processes.values()):
                process.kill() if again else process.terminate()
            # Not print: the signal may interrupt a print.
            os.write(1, b"\nStopping: saving first; once more stops at once.\n" if not again else b"")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with safe_path():  # the first job starts the processes
                yield
        except BrokenProcessPool:
            if stopping:
                raise Interrupted("Stopped at once: the same command continues from the last checkpoints.") from None
            raise UserError(
                "A worker process was killed, perhaps for lack of memory: the same command continues; fewer --workers "
                'take less memory. A script must call this below if __name__ == "__main__", since workers import it.'
            ) from None
        except Interrupted:
            raise  # the workers know already
        except BaseException:
            for process in list(self._pool._processes.values()):
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
