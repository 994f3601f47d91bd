"""Checkpoints that are either complete or absent, and logs that a resumed run continues."""

import csv
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from proxemic.errors import UserError
from proxemic.files import check_regular, write_atomically, write_csv

_INSTEAD = "put a copy in its place, or begin anew with another --out"
_PARTS = {"state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "global_step", "proxemic"}


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints to a temporary name and then renames them; reads them without running pickled code."""

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        # Serialised first, because torch.save hides why writing to a file fails.
        content = io.BytesIO()
        torch.save(dict(checkpoint), content)
        with write_atomically(Path(path)) as temporary:
            temporary.write_bytes(content.getbuffer())

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:  # torch compares no checksums itself
            if (part := archive.testzip()) is not None:
                raise UserError(f"{path} is damaged (the checksum of {part} is wrong): {_INSTEAD}.")
        return read_checkpoint(path, mmap=False, map_location=map_location or "cpu")


def read_checkpoint(path: str | os.PathLike[str], *, mmap: bool = True, map_location: Any = "cpu") -> dict[str, Any]:
    """Read the checkpoint of a run; with ``mmap``, tensors are loaded from the file when they are used."""
    try:
        check_regular(Path(path))
        checkpoint = torch.load(path, map_location=map_location, mmap=mmap, weights_only=True)
    except Exception as error:  # torch.load raises many kinds of errors for other files
        of_the_file = isinstance(error, OSError) and error.filename is not None  # not about its content
        if of_the_file or isinstance(error, MemoryError):
            raise
        reason = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
        raise UserError(f"{path} is no whole checkpoint of tensors ({reason}): {_INSTEAD}.") from error
    if not isinstance(checkpoint, dict) or not checkpoint.keys() >= _PARTS:
        raise UserError(f"{path} is a checkpoint of something else than proxemic train: {_INSTEAD}.")
    return checkpoint


def run_loggers(folder: Path, step: int) -> Sequence[Logger]:
    """Return loggers to TensorBoard and CSV that continue the logs in the folder, after removing ``step`` and later.

    A killed run logs these steps again.
    """
    return [TensorBoardLogger(folder, name="tensorboard", version=0, purge_step=step), CSVLog(folder, step)]


class CSVLog(Logger):
    """Logs to ``csv/version_0/metrics.csv``, and keeps an existing file, which Lightning's own logger would delete."""

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
