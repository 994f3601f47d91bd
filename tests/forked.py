"""A plugin of pytest: ``--workers N`` processes share the tests file by file, forked once everything is collected.

`docs/decisions/tests.md` says why; `tests/test_forked.py` tests it.
"""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

FORK = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, metavar="N", help="processes that share the tests, file by file")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Share the tests, or return None, by which pytest runs them in this process."""
    option = session.config.option
    left = dict(enumerate(session.items))
    workers = min(option.workers, len(_by_file(left)))
    if option.collectonly or option.usepdb or option.trace or session.testsfailed or workers < 2:
        return None
    if threads := _threads():
        raise pytest.UsageError(f"--workers forks this process, which runs threads: {threads}. Set OMP_NUM_THREADS=1.")
    getattr(session.config, "_tmp_path_factory").getbasetemp()  # noqa: B009 - once, as it empties the folder
    if "warm" in sys.modules:
        sys.modules["warm"].server()  # one for all workers
    while left and not (session.shouldfail or session.shouldstop):
        left = _share(session, left)  # more than once only if a worker crashes
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def _threads() -> list[str]:
    """Return the names of threads whose locks a fork might find taken: not jemalloc's, which prepares for forks."""
    names = [
        (task / "comm").read_text().strip()
        for task in Path("/proc/self/task").glob("*")
        if task.name != str(os.getpid())
    ]
    return [name for name in names if name != "jemalloc_bg_thd"]


Tests = dict[int, pytest.Item]
"""Tests by their number in the whole run."""


def _by_file(tests: Tests) -> list[Tests]:
    return [dict(file) for _, file in groupby(tests.items(), lambda test: test[1].nodeid.partition("::")[0])]


@dataclass
class _Worker:
    process: ForkProcess
    test: int | None = None
    """The number of the test that it runs."""
    error: str = ""
    finished: bool = False


def _share(session: pytest.Session, tests: Tests) -> Tests:
    """Run the numbered tests in workers and report them; return those that crashed workers have left."""
    files = _by_file(tests)
    taken, stop = FORK.Value("i", 0), FORK.Event()

    def take() -> Tests:
        with taken.get_lock():
            taken.value += 1
            return files[taken.value - 1] if taken.value <= len(files) else {}

    workers: dict[Connection, _Worker] = {}
    for number in range(min(session.config.option.workers, len(files))):
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_work, args=(session, take, stop, sender.send, number))
        process.start()
        sender.close()
        workers[receiver] = _Worker(process)
    left = dict(tests)
    try:
        while workers:
            # What a test forks holds the pipe, too: that the other end is closed, we do not always see.
            wait([*workers], timeout=1)
            for receiver, worker in [*workers.items()]:
                ended = not worker.process.is_alive()
                try:
                    while receiver.poll():
                        _receive(session, worker, receiver.recv(), left)
                except EOFError:
                    ended = True
                if ended:
                    worker.process.join()
                    del workers[receiver]
                    if not worker.finished:
                        _report_crash(session, worker, tests)
                if session.shouldfail or session.shouldstop:
                    stop.set()
    finally:
        stop.set()
        for receiver, worker in workers.items():  # any only if this process is interrupted
            receiver.close()
            worker.process.join()
    return left


def _receive(session: pytest.Session, worker: _Worker, message: Any, left: Tests) -> None:
    hook = session.config.hook
    match message:
        case int():
            worker.test = message
            del left[message]
        case str():
            worker.error = message
        case None:
            worker.finished = True
        case _:
            report = hook.pytest_report_from_serializable(config=session.config, data=message)
            hook.pytest_runtest_logreport(report=report)


def _report_crash(session: pytest.Session, worker: _Worker, tests: Tests) -> None:
    error = worker.error or f"its worker ended with exit code {worker.process.exitcode}"
    if worker.test is None:
        raise RuntimeError(f"A worker cannot begin: {error}")
    item = tests[worker.test]
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", error, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


def _work(
    session: pytest.Session,
    take: Callable[[], Tests],
    stop: Any,
    send: Callable[[object], None],
    number: int,
) -> None:
    """Run files of tests as long as there are any, in a forked process."""
    try:
        _begin(session.config, send, number)
        while tests := take():
            following: list[Any] = [*tests.values(), session]  # after a file, only the fixtures of the session stay
            for (number, item), nextitem in zip(tests.items(), following[1:], strict=True):
                if stop.is_set():
                    break
                send(number)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        getattr(session, "_setupstate").teardown_exact(None)  # noqa: B009
        send(None)
    except BaseException:
        send(traceback.format_exc())
    finally:
        os._exit(0)


def _begin(config: pytest.Config, send: Callable[[object], None], number: int) -> None:
    manager: Any = config.pluginmanager
    os.environ["PYTEST_WORKER"] = str(number)
    if (capture := manager.getplugin("capturemanager")) is not None and capture.is_globally_capturing():
        capture.stop_global_capturing()  # of a file that it shares with the others
        capture.start_global_capturing()
    factory = getattr(config, "_tmp_path_factory")  # noqa: B009
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir(exist_ok=True)
    vars(forkserver)["_forkserver"].ensure_running = lambda: None  # it is the other process's child
    manager.unregister(manager.getplugin("terminalreporter"))
    manager.register(_Reporter(config, send))


class _Reporter:
    def __init__(self, config: pytest.Config, send: Callable[[object], None]) -> None:
        self._config, self._send = config, send

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
