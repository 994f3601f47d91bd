"""`proxemic serve` as a process, and an HTTP client."""

import os
import re
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx

from command_line import ENVIRONMENT, command, warm_start


def own_address() -> str:
    """Return the address by which other machines reach this one, or else its host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return probe.getsockname()[0]
        return "127.0.0.1"


def workers_of(server: int) -> set[int]:
    """Find the worker processes of a server with several."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return {*filter(is_worker, map(int, children))}


def is_worker(process: int) -> bool:
    """Return whether a process is a worker, and runs."""
    try:
        return "--multiprocessing-fork" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


class Serving:
    """A running server.

    Args:
        folder: Where its output goes.
        words: Of the command line, after ``proxemic serve``.
        forked: Whether its process need not import.
    """

    def __init__(self, folder: Path, *words: str | Path, forked: bool = False) -> None:
        self.log = folder / "serve.log"
        if forked:
            self.process = warm_start("serve", *words, "--port", "0")
            self.log = self.process.outputs[1]
        else:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    command("serve", *words, "--port", "0"),
                    stdout=log,
                    stderr=log,
                    env=ENVIRONMENT,
                    start_new_session=True,
                )
        found = None
        while found is None:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
            found = re.search(r"at http://([\d.]+):(\d+)/", self.log.read_text())
        self.port = int(found[2])
        self.address = f"http://{own_address() if found[1] == '0.0.0.0' else found[1]}:{self.port}/"
        self.client = httpx.Client(base_url=self.address, timeout=60)

    def end(self, number: int = signal.SIGINT) -> int:
        """End it as Ctrl-C does, which a terminal sends to all of its processes, and return its exit code."""
        self.client.close()
        os.killpg(self.process.pid, number)
        if isinstance(self.process, subprocess.Popen):
            return self.process.wait(60)
        printed = self.process.communicate(60)
        assert "Traceback" not in "".join(printed), printed
        return self.process.returncode or 0
