"""The logs of a run: one TensorBoard version and one CSV file, however often it is resumed."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from proxemic.files import write_csv


def run_loggers(folder: Path, step: int) -> Sequence[Logger]:
    """Log to TensorBoard and to CSV, continuing the logs in the folder, without what they hold from ``step`` on.

    What a killed run has logged after its last checkpoint is logged again.
    """
    return [TensorBoardLogger(folder, name="tensorboard", version=0, purge_step=step), CSVLog(folder, step)]


class CSVLog(Logger):
    """Logs to ``csv/version_0/metrics.csv``; Lightning's own logger would delete the file that is there."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__()
        self.path = folder / "csv" / "version_0" / "metrics.csv"
        self.rows: list[Mapping[str, Any]] = []
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                self.rows = [row for row in csv.DictReader(file) if int(row["step"]) < step]

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> int:
        return 0

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.rows.append({"step": step, **metrics})

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    @rank_zero_only
    def save(self) -> None:
        names = sorted({name for row in self.rows for name in row})
        if names:
            write_csv(self.path, names, [[row.get(name) for name in names] for row in self.rows])

    def finalize(self, status: str) -> None:
        self.save()
