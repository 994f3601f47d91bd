"""Loggers: any object with ``log_metrics``, and the two that every run has by default."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from proxemic.files import write_csv

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@runtime_checkable
class Logger(Protocol):
    """Receives values during a training, on the first process only."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log values after ``step`` steps; a run that was killed logs those after its checkpoint again."""
        ...


class RunLog(ABC):
    """A log in the directory of its run, which a resumed run continues."""

    @abstractmethod
    def begin(self, folder: Path, step: int) -> None:
        """Continue the log in a folder, without the values after ``step``."""

    @abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log values after ``step`` steps."""

    @abstractmethod
    def save(self) -> None:
        """Write what was logged; called before each checkpoint."""

    def close(self) -> None:
        """Write what was logged; called at the end."""
        self.save()


class TensorBoardLog(RunLog):
    """Logs to ``logs/tensorboard/version_0`` of the run directory."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None

    def begin(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second

        self._writer = SummaryWriter(folder / "tensorboard" / "version_0", purge_step=step + 1)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        assert self._writer is not None, "begun by the training"
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def save(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class CSVLog(RunLog):
    """Logs to ``logs/csv/version_0/metrics.csv`` of the run directory."""

    def __init__(self) -> None:
        self._rows: list[Mapping[str, Any]] = []

    def begin(self, folder: Path, step: int) -> None:
        self._path = folder / "csv" / "version_0" / "metrics.csv"
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                self._rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._rows.append({"step": step, **metrics})

    def save(self) -> None:
        names = sorted({name for row in self._rows for name in row})
        if names:
            write_csv(self._path, names, [[row.get(name) for name in names] for row in self._rows])
