"""The logs of a run: one TensorBoard version and one CSV file, however often it is resumed."""

import csv
from collections.abc import Sequence
from pathlib import Path

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from proxemic.files import write_csv


def run_loggers(folder: Path, step: int) -> Sequence[Logger]:
    """Log to TensorBoard and to CSV, continuing the logs in the folder, without what they hold from ``step`` on.

    What a killed run has logged after its last checkpoint is logged again.
    """
    return [TensorBoardLogger(folder, name="tensorboard", version=0, purge_step=step), _ContinuedCSV(folder, step)]


class _ContinuedCSV(CSVLogger):
    """Lightning's logger would delete the file that is there."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(folder, name="csv", version=0)
        self._step = step

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        if not isinstance(self._experiment, _Writer):
            self._experiment = _Writer(self.log_dir, self._step)
        return self._experiment


class _Writer(ExperimentWriter):
    def __init__(self, folder: str, step: int) -> None:
        self._step = step
        super().__init__(folder)

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if not path.exists():
            return
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        if "step" not in header:
            path.unlink()
            return
        column = header.index("step")
        # A kill may have cut the last row.
        write_csv(path, header, [row for row in rows if len(row) == len(header) and int(row[column]) < self._step])
        self.metrics_keys = header
