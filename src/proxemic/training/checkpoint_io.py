"""Checkpoints that are whole or not there."""

import errno
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from proxemic.errors import UserError

__all__ = ["AtomicCheckpointIO", "write_atomically", "writing"]


@contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turn a failure to write ``what``, a full disk above all, into one sentence."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else str(error).splitlines()[0]
        raise UserError(f"{what} could not be written: {reason}; free some space or check the folder") from error


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it becomes ``path`` at the end, or is removed on failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints, written to a temporary name and then renamed, read without unpickling code."""

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Serialised before it is written: torch.save hides the reason why a write to a file fails.
        content = io.BytesIO()
        torch.save(dict(checkpoint), content)
        with write_atomically(target) as temporary:
            temporary.write_bytes(content.getbuffer())

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return torch.load(path, map_location=map_location or "cpu", weights_only=True)
