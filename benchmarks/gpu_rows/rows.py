"""Measure rows one by one, each within its own time limit, and write the file after each row."""

import json
import platform
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from proxemic.files import write_json

Row = Mapping[str, Any]
LIMIT = 30.0  # seconds of a row that names no limit


class Rows:
    """The rows of a file by name, including rows of an earlier start.

    Args:
        path: The file. A second start measures missing and failed rows.
        machine: Description of the device, which must be the same for all starts.
        seconds: Time after which no row starts.
    """

    def __init__(self, path: Path, machine: Row, seconds: float) -> None:
        new = {"machine": dict(machine), "date": f"{datetime.now(UTC):%Y-%m-%d}", "rows": {}}
        self.path, self.content = path, json.loads(path.read_text()) if path.exists() else new
        if self.content["machine"] != machine:
            raise SystemExit(f"{path} was measured on {self.content['machine']}, not on {machine}: give another --out.")
        self.left_out: list[str] = []
        self._end = time.monotonic() + seconds

    def __getitem__(self, name: str) -> Any:
        return self.content["rows"][name]

    def add(self, name: str, measure: Callable[[], Row], limit: float = LIMIT) -> None:
        """Measure a row unless it is there or the time is up; a failure is recorded as a row."""
        if "failed" not in self.content["rows"].get(name, {"failed": ""}):
            return
        left = self._end - time.monotonic()
        if left <= 0:
            self.left_out.append(name)
            return
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with _limited(min(limit, left)):
                    row: dict[str, Any] = dict(measure())
            except torch.OutOfMemoryError:
                row = {"does not fit": True}
            except Exception as error:  # any error: the other rows are still measured
                row = {"failed": f"{type(error).__name__}: {error}"[:500]}
        if said:
            row["warnings"] = sorted({str(item.message)[:300] for item in said})
        self.content["rows"][name] = row | {"taken": round(time.monotonic() - began, 1)}
        write_json(self.path, self.content)
        print(f"{name}: {json.dumps(row)}", flush=True)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"the row took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def describe(device: torch.device) -> dict[str, Any]:
    """Return the device and versions for the rows of a file."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    found = {"python": platform.python_version(), "torch": torch.__version__, "device": device.type}
    found["commit"] = commit.stdout.strip() or "unknown"
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return found
