"""Processes that connect, communicate, and end together."""

import fcntl
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from proxemic.errors import UserError
from proxemic.runs import processes as module
from proxemic.runs.processes import Processes, join_processes
from together import JOB_SCRIPT, finish, start_together

AGREE = """
import sys, time
from pathlib import Path
from proxemic.runs.processes import join_processes

file = Path(sys.argv[1])
with join_processes() as processes:
    with processes.main_process_first():
        if processes.is_first:
            time.sleep(0.5)
            file.touch()
        assert file.exists()
    assert processes.broadcast(str(processes.rank)) == "0"
    assert processes.all_gather(str(processes.rank)) == ["0", "1", "2"]
    assert processes.any(processes.rank == 1, False) == (True, False)
"""


def test_processes_agree_and_the_first_goes_ahead(tmp_path: Path) -> None:
    results = finish(start_together(3, tmp_path / "file", program=("-c", AGREE)))
    assert [result.returncode for result in results] == [0, 0, 0], results


def test_one_process_agrees_with_itself() -> None:
    with join_processes() as processes, processes.main_process_first():
        assert processes == Processes()
    assert (processes.broadcast("a"), processes.all_gather("a"), processes.any(True, False)) == (
        "a",
        ["a"],
        (True, False),
    )


def test_without_srun_a_process_of_a_job_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB_SCRIPT.items():
        monkeypatch.setenv(name, value)
    with join_processes() as processes:
        assert processes == Processes()


LOST = """
import os, signal, sys
from datetime import timedelta
import proxemic.runs.processes as module

module._COLLECTIVES = timedelta(seconds=3)
with module.join_processes() as processes:
    processes.any(False)
    if processes.rank == int(sys.argv[1]):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    processes.any(False)
"""


@pytest.mark.parametrize(
    ("lost", "signal", "slurm", "reason"),
    [
        (0, "SIGKILL", True, "Connection"),  # with it goes the store that the processes found each other by
        (1, "SIGSTOP", False, "Timed out waiting 3000ms"),  # as a machine that is cut off: nothing is closed
    ],
)
def test_where_a_process_is_lost_the_others_end_and_say_so(lost: int, signal: str, slurm: bool, reason: str) -> None:
    processes = start_together(2, str(lost), signal, program=("-c", LOST), slurm=slurm)
    try:
        (result,) = finish([processes[1 - lost]], timeout=60)
    finally:
        processes[lost].kill()
        processes[lost].communicate()
    assert result.returncode == 1, result
    assert re.search(
        rf"UserError: Another process of the run ended, or does not answer \(.*{reason}.*\): the output", result.stderr
    )


LAUNCHER = """
import fcntl, os, sys, time
from proxemic.runs.processes import join_processes

os.environ["WORLD_SIZE"] = "2"
for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        with join_processes() as processes:
            processes.any(False)
            file = open(sys.argv[1] + rank, "w")
            fcntl.flock(file, fcntl.LOCK_EX)  # for as long as it lives
            print(os.getpid(), file=file, flush=True)
            time.sleep(600)
time.sleep(600)
"""


def test_a_killed_launcher_leaves_no_processes(tmp_path: Path) -> None:
    (launcher,) = start_together(1, f"{tmp_path}/", program=("-c", LAUNCHER))
    until = time.monotonic() + 60

    def wait_for(ready: Callable[[], bool]) -> None:
        while not ready():
            assert time.monotonic() < until
            time.sleep(0.05)

    def ended(path: Path) -> bool:
        with path.open() as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    wait_for(lambda: sum(path.stat().st_size > 0 for path in tmp_path.iterdir()) == 2)
    os.kill(launcher.pid, signal.SIGKILL)
    try:
        wait_for(lambda: all(map(ended, tmp_path.iterdir())))
    finally:
        for path in tmp_path.iterdir():
            if not ended(path):
                os.kill(int(path.read_text()), signal.SIGKILL)
    launcher.communicate()


ERROR = """
import os
from proxemic.runs.processes import join_processes

os.environ["TORCHELASTIC_ERROR_FILE"] = os.environ["RANK"] + ".json"  # as torchrun does
with join_processes() as processes:
    processes.any(processes.is_first or 1 / 0)  # which the first one waits for
"""


def test_an_error_of_one_process_is_reported_to_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, other = finish(start_together(2, program=("-c", ERROR)))
    assert "ZeroDivisionError" in other.stderr
    assert "ZeroDivisionError" in (tmp_path / "1.json").read_text()


def test_an_error_of_joining_that_is_not_about_a_process_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such backend")

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setattr(dist, "rendezvous", fail)
    with pytest.raises(RuntimeError, match="no such backend"), join_processes():
        raise AssertionError


ALONE = """
import os, sys
from datetime import timedelta
import proxemic.runs.processes as module

if os.environ["SLURM_PROCID"] == "1":
    sys.exit()  # it never comes
module._JOINING = timedelta(seconds=1)
try:
    with module.join_processes():
        raise AssertionError
except module.UserError as error:
    print(error)
"""


def test_processes_that_do_not_come_are_missed() -> None:
    first, _ = finish(start_together(2, program=("-c", ALONE), slurm=True))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("Not all 2 processes connected to 127.0.0.1:")


def test_torchrun_learns_of_errors_but_not_of_the_loss_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Exception] = []
    handler = SimpleNamespace(record_exception=reported.append)
    monkeypatch.setattr(module, "get_error_handler", lambda: handler)
    monkeypatch.setattr(module, "_launched", lambda: True)
    monkeypatch.setattr(module, "_join", Processes)
    with pytest.raises(UserError, match="Another process of the run ended"), join_processes():
        raise RuntimeError("[/pytorch/gloo/pair.cc:1] Connection closed by peer")
    assert reported == []
    with pytest.raises(ValueError, match="own"), join_processes():
        raise ValueError("its own")
    assert [str(error) for error in reported] == ["its own"]
