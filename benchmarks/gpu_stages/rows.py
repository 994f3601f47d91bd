"""The rows of a stage: measured one by one until its time is up, and written to a file after each."""

import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from proxemic.files import write_json

Row = Mapping[str, Any]


class Rows:
    """The rows of a stage by name, those of an earlier start included.

    Args:
        path: The file; a second start goes on with the rows that it lacks.
        machine: What the rows are measured on, which must not change between starts.
        seconds: The time of the stage. No row begins that would, if it took as long as the longest, end after it.
        report: Is told every row as it is there.
    """

    def __init__(self, path: Path, machine: Row, seconds: float, report: Callable[[str], object] = print) -> None:
        self.path, self.seconds, self.report = path, seconds, report
        kept = json.loads(path.read_text()) if path.exists() else {"machine": dict(machine), "rows": {}}
        if kept["machine"] != machine:
            raise SystemExit(f"{path} was measured on {kept['machine']}, not on {machine}: give another --out.")
        self.content: dict[str, Any] = kept
        self.left_out: list[str] = []
        self._began, self._longest = time.monotonic(), 0.0

    def __getitem__(self, name: str) -> Any:
        return self.content["rows"][name]

    @property
    def seconds_left(self) -> float:
        """Until the stage must end."""
        return self.seconds - (time.monotonic() - self._began)

    def add(self, name: str, measure: Callable[[], Row]) -> None:
        """Measure a row, unless it is there or the time is up; a failure is one, too, and is tried again at a start."""
        if "failed" not in self.content["rows"].get(name, {"failed": ""}):
            return
        if self.seconds_left < self._longest:
            self.left_out.append(name)
            return
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                row: dict[str, Any] = dict(measure())
            except torch.OutOfMemoryError:
                row = {"does not fit": True}
            except Exception as error:  # whatever it is, the other rows are to be measured
                row = {"failed": f"{type(error).__name__}: {error}"[:500]}
        if said:
            row["warnings"] = sorted({str(each.message)[:300] for each in said})
        taken = time.monotonic() - began
        self._longest = max(self._longest, taken)
        self.content["rows"][name] = row | {"taken": round(taken, 1)}
        write_json(self.path, self.content)
        self.report(f"{name}: {json.dumps(row)}")
