"""Processes that join, agree, and end together."""

import re
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from proxemic.runs.processes import Processes, _keep_store, join_processes
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
module._NOTICING = 1.0
with module.join_processes() as processes:
    processes.any(False)
    if processes.rank == int(sys.argv[1]):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    processes.any(False)
"""


@pytest.mark.parametrize(
    ("lost", "signal", "slurm", "reason"),
    [
        (1, "SIGKILL", False, "Connection"),
        (0, "SIGKILL", True, "Connection"),  # with it goes the store that the processes found each other by
        (1, "SIGSTOP", False, "Timed out waiting 3000ms"),  # as a machine that is cut off: nothing is closed
    ],
)
def test_where_a_process_is_lost_the_others_end_and_one_says_so(
    lost: int, signal: str, slurm: bool, reason: str
) -> None:
    processes = start_together(3, str(lost), signal, program=("-c", LOST), slurm=slurm)
    processes, gone = [process for rank, process in enumerate(processes) if rank != lost], processes[lost]
    try:
        results = finish(processes, timeout=60)
    finally:
        gone.kill()
        gone.communicate()
    assert sorted(result.returncode for result in results) == [1, 2], results
    (error,) = [result.stderr for result in results if result.returncode == 1]
    assert re.search(
        rf"UserError: Another process of the run ended, or does not answer \(.*{reason}.*\): the output", error
    )
    assert not [result.stdout for result in results if result.stdout]


ERROR = """
import os, signal
from proxemic.runs.processes import join_processes
import proxemic.runs.processes as module

module._NOTICING = 3.0  # of a busy machine
said = module._is_first_to_say

def with_signals(*given):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)  # the reason is given all the same
    return said(*given)

module._is_first_to_say = with_signals
with join_processes() as processes:
    processes.any(processes.is_first or 1 / 0)  # which the first one waits for
"""


@pytest.mark.parametrize("slurm", [False, True])
def test_an_error_of_one_process_is_its_own_to_say(slurm: bool) -> None:
    first, other = finish(start_together(2, program=("-c", ERROR), slurm=slurm))
    assert (first.returncode, first.stderr) == (2, "")
    assert other.returncode == 1
    assert "ZeroDivisionError" in other.stderr


def test_the_first_process_keeps_the_store_until_the_others_have_asked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store = dist.HashStore()
    asks = threading.Timer(0.3, lambda: store.add("asked", 1))
    asks.start()
    began = time.monotonic()
    _keep_store(Processes(0, 2), store)
    assert 0.2 < time.monotonic() - began < 2
    assert store.add("asked", 0) == 2
    asks.join()


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
    assert first.stdout.startswith("Not all of 2 processes came to 127.0.0.1:")
