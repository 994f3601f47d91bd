"""Checkpoints that are either complete or absent."""

import io
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from proxemic.errors import UserError
from proxemic.files import check_regular, write_atomically

PARTS = {"epoch", "batch", "step", "model", "loss", "optimizer", "schedule", "record"}
"""What every checkpoint contains."""
_INSTEAD = "put a copy in its place, or begin anew with another --out"


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint under a temporary name and rename it."""
    content = io.BytesIO()
    torch.save(dict(checkpoint), content)  # in memory, because torch.save hides why writing to a file fails
    with write_atomically(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def read_checkpoint(path: str | os.PathLike[str], *, whole: bool = False) -> dict[str, Any]:
    """Read the checkpoint of a run without running pickled code; tensors are loaded from the file when they are used.

    With ``whole``, all of the file is read, and its checksums are compared, which torch does not do.
    """
    try:
        check_regular(Path(path))
        if whole:
            with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
                if (part := archive.testzip()) is not None:
                    raise ValueError(f"the checksum of {part} is wrong")
        checkpoint = torch.load(path, map_location="cpu", mmap=not whole, weights_only=True)
    except Exception as error:  # torch.load raises many kinds of errors for other files
        of_the_file = isinstance(error, OSError) and error.filename is not None  # not about its content
        if of_the_file or isinstance(error, MemoryError):
            raise
        reason = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
        raise UserError(f"{path} is no whole checkpoint of tensors ({reason}): {_INSTEAD}.") from error
    if not isinstance(checkpoint, dict) or not checkpoint.keys() >= PARTS:
        raise UserError(f"{path} is a checkpoint of something else than this version of proxemic train: {_INSTEAD}.")
    return checkpoint
