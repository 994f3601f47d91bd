"""Several workers of one server: one is killed, or all end before they serve."""

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from uvicorn import Config

from proxemic.errors import UserError
from proxemic.serve.workers import run_workers
from servings import Serving, is_worker, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")


def test_a_killed_worker_costs_its_requests_alone(shelf: Path, tmp_path: Path) -> None:
    shop = shutil.copytree(shelf / "shop", tmp_path / "shop")
    serving = Serving(tmp_path, shop, "--workers", "2", "--token", "a-token-of-24-characters", "--review", forked=True)
    with serving.client as client:
        client.headers["Connection"] = "close"
        cookie = client.get("/?token=a-token-of-24-characters").headers["set-cookie"].partition(";")[0]
        workers = workers_of(serving.process.pid)
        assert len(workers) == 2
        killed = min(workers)
        os.kill(killed, signal.SIGKILL)
        for _ in range(4):  # the cookie of one worker is that of the other
            assert client.get("/gallery", headers={"Cookie": cookie}).json()["rows"] == 28
            asked = client.post("/review/next?session=a-session", headers={"Cookie": cookie})
            assert "left" in asked.json(), "both have what was found before they began"
        assert httpx.post(f"{serving.address}review/next?session=a-session").status_code == 401
        while len(workers_of(serving.process.pid) - {killed}) < 2:
            time.sleep(0.02)
    assert serving.end() == 0, "while a worker may still be opening"


WITHOUT_GALLERY = """
import socket
from uvicorn import Config
from proxemic.serve.workers import end_with_parent, run_workers

with socket.create_server(("127.0.0.1", 0)) as listener:
    run_workers(Config(end_with_parent, factory=True, workers=2, log_level="critical"), listener)
"""


def test_workers_end_with_a_server_that_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", WITHOUT_GALLERY])
    while len(workers := workers_of(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    until = time.monotonic() + 30
    while any(map(is_worker, workers)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_workers_that_cannot_open_the_gallery_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn._subprocess.spawn", multiprocessing.get_context("fork"))  # they import nothing
    before = signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(UserError, match="before they serve"):
        run_workers(Config(partial(sys.exit, 3), factory=True, workers=2, log_level="critical"), listener)
    assert signal.getsignal(signal.SIGINT) is before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
